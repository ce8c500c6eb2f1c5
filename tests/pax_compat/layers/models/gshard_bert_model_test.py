"""The model with GShard's metrics, against sums in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.embedding_softmax import GShardSharedEmbeddingSoftmax
from pax_compat.layers.linears import Linear
from pax_compat.layers.models import gshard_bert_model
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import token_batches as batches

V, MASK = 9, 8
_SMOOTHING, _Z_LOSS = 0.2, 0.03


def _config(*, smoothing=_SMOOTHING, z_loss=_Z_LOSS, **softmax):
  config = gshard_bert_model.GShardBertModel.config(mask_token_id=MASK)
  config.lm_tpl.set(vocab_size=V, model_dims=8)
  config.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, hidden_dims=8, num_heads=2
  )
  config.lm_tpl.softmax_tpl = GShardSharedEmbeddingSoftmax.config(
    label_smoothing_prob=smoothing,
    label_smoothing_apply_for_eval=True,
    z_loss_weight=z_loss,
    **softmax,
  )
  return config


def _batch():
  """Two rows: the first holds two examples, the second ends with padding."""
  segment_ids = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]], np.int32)
  # An id below 1: its token cannot be masked.
  ids = np.array([[4, 2, 0, 5, 1, 3], [7, 6, 5, 1, 2, 0]], np.int32)
  masked = np.array([[1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 1, 0]], np.float32)
  return NestedMap(
    ids=ids,
    masked_ids=np.where(masked > 0, MASK, ids).astype(np.int32),
    masked_pos=masked,
    segment_ids=segment_ids,
    segment_pos=np.array([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 0]], np.int32),
  )


@pytest.fixture(scope='module')
def params():
  return batches.random_weights(_config(), _batch(), scale=0.5)


def _predictions(params, data):
  config = _config()
  config.lm_tpl.record_logits_in_xent_output = True
  return batches.predictions(config, params, data).logits


def _wanted(logits, data, maskable, *, denominator=0, smoothing=_SMOOTHING):
  """Returns what the metrics are, token by token."""
  sums = dict.fromkeys(('soft', 'sharp', 'z', 'right', 'masked', 'tokens'), 0.0)
  for b, t in np.ndindex(*data.ids.shape):
    sums['tokens'] += maskable[b, t]
    if not maskable[b, t] * data.masked_pos[b, t]:
      continue
    log_probs = special.log_softmax(np.asarray(logits[b, t], np.float64))
    target = np.full(V, smoothing / V)
    target[data.ids[b, t]] += 1 - smoothing
    sums['masked'] += 1
    sums['soft'] -= target @ log_probs
    sums['sharp'] -= log_probs[data.ids[b, t]]
    sums['z'] += _Z_LOSS * special.logsumexp(logits[b, t]) ** 2
    sums['right'] += log_probs.argmax() == data.ids[b, t]
  number, rows = sums['masked'], len(data.ids)
  denominator = denominator or number
  return {
    'loss': ((sums['soft'] + sums['z']) / denominator, 1),
    'avg_z_loss_increment': (sums['z'] / denominator, 1),
    'aux_loss': (0, 1),
    'acc1': (sums['right'] / number, number),
    'mean_xent': (sums['sharp'] / number, number),
    'soft_labels_xent': (sums['soft'] / number, number),
    'weight': (number, 1),
    'num_total_tokens': (sums['tokens'] / rows, rows),
    'num_masked_tokens': (number / rows, rows),
  }


# Neither padding nor the token whose id is 0.
_MASKABLE = np.array([[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


@pytest.mark.parametrize(
  ('denominator', 'chunk', 'fill'),
  [
    (0, 0, lambda b: b),
    (0, 4, batches.padded),
    (3.0, 4, lambda b: b),
    (3.0, 0, batches.padded),
  ],
)
def test_metrics(params, denominator, chunk, fill):
  data = _batch()
  want = _wanted(
    _predictions(params, data), data, _MASKABLE, denominator=denominator
  )
  assert want['weight'][0] == 4 and want['num_total_tokens'][0] == 4.5
  config = _config(chunk_size=chunk, fixed_loss_denominator=denominator or None)
  got, outputs = batches.run(config, params, fill(data))
  batches.assert_metrics(got, want)
  np.testing.assert_array_equal(outputs.augmented_labels[:2], data.masked_ids)


def test_paddings_take_the_place_of_segments_and_ids(params):
  data = _batch()
  paddings = np.array([[0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1]], np.float32)
  want = _wanted(_predictions(params, data), data, 1 - paddings)
  assert want['weight'][0] == 6 and want['num_total_tokens'][0] == 4.5
  got, _ = batches.run(_config(), params, NestedMap(data, paddings=paddings))
  batches.assert_metrics(got, want)


def test_a_batch_that_is_not_masked(params):
  data = _batch()
  del data.masked_ids, data.masked_pos
  config = _config()
  config.mlm_augmenter_tpl.set(mask_prob=1.0, random_prob=0.0, same_prob=0.0)
  layer = config.Instantiate()
  rngs = {base_layer.RANDOM: jax.random.key(0)}
  got, outputs = layer.apply({PARAMS: params}, data, rngs=rngs)
  assert got.weight[0] == got.num_total_tokens[0] * 2 == _MASKABLE.sum()
  np.testing.assert_array_equal(
    outputs.augmented_labels, np.where(_MASKABLE, MASK, data.ids)
  )


@pytest.mark.parametrize('chunk', [0, 4])
def test_gradients(params, chunk):
  """Against those of a softmax in one piece, written out."""
  data = _batch()
  weights = data.masked_pos * _MASKABLE

  def loss(params):
    return (
      _config(chunk_size=chunk).Instantiate().apply({PARAMS: params}, data)[0]
    )

  def plain(params):
    config = _config()
    config.lm_tpl.record_logits_in_xent_output = True
    layer = config.Instantiate()
    logits = layer.apply(
      {PARAMS: params}, data, method=layer.compute_predictions
    ).logits
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target = jax.nn.one_hot(data.ids, V) * (1 - _SMOOTHING) + _SMOOTHING / V
    xent = log_z - (target * logits).sum(-1) + _Z_LOSS * log_z**2
    return (xent * weights).sum() / weights.sum()

  got = jax.jit(jax.grad(lambda p: loss(p).loss[0]))(params)
  want = jax.jit(jax.grad(plain))(params)
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5),
    *(got, want),
  )


def test_the_z_loss_is_added_once(params):
  layer = _config().Instantiate()
  _, updated = layer.apply(
    {PARAMS: params}, _batch(), mutable=[base_layer.AUX_LOSS]
  )
  assert not jax.tree.leaves(updated)


def test_sharp_labels_and_no_z_loss(params):
  config = _config(smoothing=0.0, z_loss=0.0)
  got, _ = batches.run(config, params, _batch())
  assert got.loss[0] == got.mean_xent[0] == got.soft_labels_xent[0]
  assert got.avg_z_loss_increment[0] == 0
  want = _wanted(_predictions(params, _batch()), _batch(), _MASKABLE)
  np.testing.assert_allclose(got.mean_xent, want['mean_xent'], rtol=1e-5)


def test_without_masked_tokens_the_loss_is_0(params):
  data = _batch()
  data.masked_pos = np.zeros_like(data.masked_pos)
  got, _ = batches.run(_config(), params, data)
  assert got.loss[0] == got.acc1[0] == got.weight[0] == 0


def test_padding_rows_have_weight_0(params):
  data = NestedMap(_batch(), eval_sample_weights=np.zeros(2, np.float32))
  got, _ = batches.run(_config(), params, data)
  assert not any(weight for _, weight in got.values())


class _Costly(Linear):
  """A layer with an auxiliary loss."""

  def __call__(self, inputs):
    self.add_aux_loss('cost', jnp.float32(0.5))
    return super().__call__(inputs)


def test_auxiliary_losses_are_in_the_loss():
  config = _config()
  ffn = config.lm_tpl.stacked_transformer_tpl.transformer_layer_params_tpl
  ffn = ffn.tr_fflayer_tpl
  params = batches.random_weights(config, _batch(), scale=0.5)
  plain, _ = batches.run(config, params, _batch())
  ffn.fflayer_tpl.linear_tpl = _Costly.config()
  (costly, _), updated = config.Instantiate().apply(
    {PARAMS: params}, _batch(), mutable=[base_layer.AUX_LOSS]
  )
  # A feed-forward has two of them.
  assert costly.aux_loss == (1.0, 1) and plain.aux_loss == (0, 1)
  np.testing.assert_allclose(costly.loss[0], plain.loss[0] + 1.0, rtol=1e-6)
  # They are not in the collection too.
  assert not jax.tree.leaves(updated)


@pytest.mark.parametrize(
  'field', ['z_loss_is_aux', 'use_tgt_labels_size_as_loss_denominator']
)
def test_a_softmax_with_another_denominator(params, field):
  config = _config(**{field: True})
  with pytest.raises(errors.UserError, match=field):
    batches.run(config, params, _batch())
