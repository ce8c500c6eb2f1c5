"""Classifiers against sums in numpy, example by example."""

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from scipy import special

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import flax_adapter, linears, models
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import token_batches as batches
from tests.pax_compat.layers.token_batches import V

B, D = 6, 4


def _config(classes=7, **fields):
  config = models.ClassificationModel.config(
    network_tpl=linears.FeedForward.config(input_dims=3, output_dims=D),
    **fields,
  )
  config.softmax_tpl.set(input_dims=D, num_classes=classes)
  return config


def _batch(classes=7, soft=True):
  rng = np.random.default_rng(4)
  labels = rng.integers(0, classes, B)
  if soft:
    labels = special.softmax(rng.normal(size=(B, classes)) * 2, axis=-1)
  return NestedMap(
    image=rng.normal(size=(B, 3)).astype(np.float32), label_probs=labels
  )


def _logits(config, params, data):
  output = batches.predictions(config, params, data).softmax_output
  return np.asarray(output.logits, np.float64)


def _want(logits, labels, weights):
  """Returns the metrics, example by example."""
  total = weights.sum()
  sums = dict.fromkeys(('xent', 'accuracy', 'acc5'), 0.0)
  for row, weight, label in zip(logits, weights, labels, strict=True):
    log_probs = special.log_softmax(row)
    if label.ndim == 0:
      label = np.eye(len(row))[label]
    best = np.argsort(-row)
    sums['xent'] -= weight * (label * log_probs).sum()
    sums['accuracy'] += weight * (best[0] == label.argmax())
    sums['acc5'] += weight * (label.argmax() in best[:5])
  mean = {name: value / total for name, value in sums.items()}
  want = {
    **dict.fromkeys(
      ('total_loss', 'loss', 'avg_xent', 'log_pplx'), (mean['xent'], total)
    ),
    'accuracy': (mean['accuracy'], total),
    'error': (1 - mean['accuracy'], total),
    'num_predictions': (total, 1),
  }
  if logits.shape[-1] > 5:
    want['acc5'] = (mean['acc5'], total)
    want['error5'] = (1 - mean['acc5'], total)
  return want


@pytest.mark.parametrize('fill', [lambda b: b, batches.padded])
@pytest.mark.parametrize('soft', [True, False])
@pytest.mark.parametrize('classes', [7, 5])
def test_metrics(classes, soft, fill):
  config, data = _config(classes), _batch(classes, soft)
  params = batches.random_weights(config, data)
  logits = _logits(config, params, data)
  got, outputs = batches.run(config, params, fill(data))
  batches.assert_metrics(got, _want(logits, data.label_probs, np.ones([B])))
  np.testing.assert_allclose(outputs.scores[:B], logits, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(outputs.labels[:B], data.label_probs, rtol=1e-6)


def test_examples_may_have_weights():
  config, data = _config(), _batch()
  params = batches.random_weights(config, data)
  logits = _logits(config, params, data)
  data.weight = np.array([0.5, 2, 1, 0, 1, 3], np.float32)
  got, _ = batches.run(config, params, batches.padded(data))
  batches.assert_metrics(got, _want(logits, data.label_probs, data.weight))
  data.weight = data.weight[:, None]
  with pytest.raises(errors.UserError, match=r'weight has the shape \[6, 1\]'):
    batches.run(config, params, data)


def test_of_equal_classes_the_first_is_predicted():
  config, data = _config(), _batch(soft=False)
  data.label_probs = np.array([0, 1, 4, 5, 6, 0])
  params = jax.tree.map(np.zeros_like, batches.random_weights(config, data))
  metrics, _ = batches.run(config, params, data)
  np.testing.assert_allclose(metrics.accuracy[0], 2 / 6, rtol=1e-6)
  np.testing.assert_allclose(metrics.acc5[0], 4 / 6, rtol=1e-6)


def test_fields_of_the_batch_have_names():
  config = _config(input_field='audio', label_field='speaker')
  data = _batch(soft=False)
  named = NestedMap(audio=data.image, speaker=data.label_probs)
  params = batches.random_weights(config, named)
  got, _ = batches.run(config, params, named)
  want, _ = batches.run(_config(), params, data)
  batches.assert_metrics(got, want)
  with pytest.raises(
    errors.UserError,
    match="label_field is 'speaker'.*expected one of .*label_p",
  ):
    batches.run(config, params, data)


def test_predict():
  config, data = _config(), _batch()
  params = batches.random_weights(config, data)
  layer = config.Instantiate()
  out = layer.apply(
    {PARAMS: params}, NestedMap(image=data.image), method=layer.predict
  )
  logits = _logits(config, params, data)
  np.testing.assert_allclose(out.logits, logits, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
    out.logp, special.log_softmax(logits, -1), rtol=1e-5, atol=1e-6
  )


def test_decoding_tells_the_accuracy():
  config, data = _config(), batches.padded(_batch())
  params = batches.random_weights(config, data)
  layer = config.Instantiate()
  metrics, out, clu_metrics = layer.apply(
    {PARAMS: params}, data, method=layer.decode
  )
  want, _ = batches.run(config, params, data)
  batches.assert_metrics(metrics, want)
  np.testing.assert_allclose(
    clu_metrics.accuracy.compute(), want.accuracy[0], rtol=1e-6
  )
  assert not out
  assert layer.process_decode_out(None, out) == ({}, [], {})


class Cnn(nn.Module):
  """Batch norm and dropout between a convolution and the features."""

  @nn.compact
  def __call__(self, images, train):
    x = nn.Conv(4, (3, 3))(images)
    x = nn.BatchNorm(use_running_average=not train)(x)
    x = nn.Dropout(0.1, deterministic=not train)(nn.relu(x))
    return x.reshape(len(x), -1)


def test_a_network_of_flax_learns():
  """Two classes: a dot to the left, and a dot to the right."""
  config = models.ClassificationModel.config(
    network_tpl=flax_adapter.FlaxModuleAdapter.config(
      module_factory_method=Cnn, train_argument='train'
    ),
  )
  config.softmax_tpl.set(input_dims=64, num_classes=2)
  images = np.zeros([2, 4, 4, 1], np.float32)
  images[0, 1, 0], images[1, 2, 3] = 1, 1
  data = NestedMap(image=images, label_probs=np.array([0, 1]))
  layer = config.Instantiate()
  variables = base_layer.unbox(layer.init({PARAMS: jax.random.key(0)}, data))
  params = variables.pop(PARAMS)
  optimizer = optax.adam(0.05)
  state = optimizer.init(params)

  @jax.jit
  def step(params, rest, state, key):
    def loss(params):
      (metrics, _), updated = layer.apply(
        {PARAMS: params, **rest},
        data,
        rngs={base_layer.RANDOM: key},
        mutable=[base_layer.NON_TRAINABLE],
      )
      return metrics.loss[0], updated

    (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), rest, state, value

  losses = []
  for i in range(10):
    params, variables, state, value = step(
      params, variables, state, jax.random.key(i)
    )
    losses.append(float(value))
  assert losses[-1] < 0.2 * losses[0]
  mean = variables[base_layer.NON_TRAINABLE]['network']['cld']['batch_stats']
  assert np.abs(mean['BatchNorm_0']['mean']).max() > 0


def _mlp_config(hidden=8):
  config = models.ClassificationMLPModel.config()
  config.mlp_tpl.set(num_layers=2, hidden_dims=hidden)
  config.mlp_tpl.ff_tpl.set(input_dims=D, output_dims=D)
  config.softmax_tpl.set(input_dims=D, num_classes=V)
  return config


@pytest.mark.parametrize('fill', [lambda b: b, batches.padded])
def test_metrics_of_labels_of_tokens(fill):
  config, data = _mlp_config(), batches.batch()
  params = batches.random_weights(config, data)
  logits = batches.predictions(config, params, data).logits
  total, nats, right, of_rows = batches.token_sums(
    logits, data.labels, data.weights
  )
  mean = (nats / total, total)
  got, outputs = batches.run(config, params, fill(data))
  batches.assert_metrics(
    got,
    {
      **dict.fromkeys(('total_loss', 'loss', 'avg_xent', 'log_pplx'), mean),
      'fraction_of_correct_next_step_preds': (right / total, total),
      'num_predictions': (total, 1),
    },
  )
  np.testing.assert_allclose(outputs.scores[:3], -of_rows, rtol=1e-5)


def test_each_token_is_on_its_own():
  config, data = _mlp_config(), batches.batch()
  params = batches.random_weights(config, data)
  before = batches.predictions(config, params, data).logits
  data.ids = data.ids.copy()
  data.ids[0, 1] = data.ids[0, 1] % (V - 1) + 1
  after = batches.predictions(config, params, data).logits
  changed = np.any(np.asarray(before) != np.asarray(after), axis=-1)
  assert changed.sum() == 1 and changed[0, 1]
