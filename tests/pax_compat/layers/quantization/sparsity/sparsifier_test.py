"""Layers with a sparse weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.layers import quantization
from pax_compat.layers.quantization import quantization_hparams, quantize
from pax_compat.layers.quantization.sparsity import (
  sparsifier,
  sparsity,
  sparsity_modes,
)
from pax_compat.layers.quantization.sparsity.sparsity_hparams import (
  PolynomialDecayParams,
  SparsityHParams,
  WeightSparsityParams,
)
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer import lines

_KEYS = {'params': jax.random.key(1), 'random': jax.random.key(2)}
_X = jax.random.normal(jax.random.key(0), [2, 5, 8])
_TRAINING = sparsity_modes.TrainingMode()
_INFERENCE = sparsity_modes.InferenceMode()


def _settings(mode=_TRAINING, rate=(2, 4), weight=(), **fields):
  params = WeightSparsityParams(rate, **dict(weight))
  return SparsityHParams(weight_params=params, mode=mode, **fields)


def _linear(settings, **fields):
  fields = dict(quantization=None, input_dims=8, output_dims=4) | fields
  return quantization.Linear.config(sparsity=settings, **fields)


def _steps(config, weights):
  """Returns masks and outputs of calls, each with other weights."""
  layer = config.Instantiate()
  variables = layer.init(_KEYS, _X)
  found = []
  for weight in weights:
    variables['params']['w'] = weight
    outputs, variables = layer.apply(variables, _X, mutable=True)
    found.append((variables['non_trainable']['w_sparsity_mask'], outputs))
  return found, variables


@pytest.mark.parametrize(
  'mode, updates',
  [
    (sparsity_modes.TrainingMode(2), [2, 3, 4, 5]),
    (sparsity_modes.OneShotMode(1), [1]),
    (sparsity_modes.FewShotMode(2, 3, 1), [1, 4]),
  ],
)
def test_masks_are_updated_at_their_steps_and_frozen_between(mode, updates):
  weights = jax.random.normal(jax.random.key(3), [6, 8, 4])
  found, variables = _steps(_linear(_settings(mode)), weights)
  expected = np.ones([8, 4], bool)
  for step, (mask, outputs) in enumerate(found):
    if step in updates:
      expected = sparsity.get_sparsity_mask(weights[step], 2, 4, order='C')
      assert expected.sum() == 16
    np.testing.assert_array_equal(mask, expected)
    product = _X @ np.where(expected, weights[step], 0)
    np.testing.assert_allclose(outputs, product, atol=1e-5)
  state = variables['non_trainable']
  assert state['step'] == 6 and state['mask_update_count'] == len(updates)
  assert state['num_shots'] == mode.get_num_shots()


def test_evaluation_has_the_mask_of_training():
  layer = _linear(_settings()).Instantiate()
  variables = layer.init(_KEYS, _X)
  weight = variables['params']['w']
  for eval_too in (False, True):
    with base_layer.JaxContext.new_context(
      hparams=base_layer.JaxContext.HParams(do_eval=True)
    ):
      outputs, after = layer.apply(variables, _X, mutable=True)
    mask = variables['non_trainable']['w_sparsity_mask']
    assert mask.all() == (not eval_too)
    np.testing.assert_allclose(outputs, _X @ (weight * mask), atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after, variables)
    variables = layer.apply(variables, _X, mutable=True)[1]


@pytest.mark.parametrize('ste', [False, True])
def test_gradients_of_pruned_weights(ste):
  mode = sparsity_modes.MaterializeMode()
  layer = _linear(
    _settings(mode, weight=dict(sparse_ste=ste, sparse_ste_weight=0.5))
  ).Instantiate()
  variables = layer.init(_KEYS, _X)
  weight = variables['params']['w']
  mask = sparsity.get_sparsity_mask(weight, 2, 4)
  variables['non_trainable']['w_sparsity_mask'] = mask

  def loss(weight):
    return layer.apply({**variables, 'params': {'w': weight}}, _X).sum()

  dense = np.repeat(np.asarray(_X).sum((0, 1))[:, None], 4, axis=1)
  expected = np.where(mask, dense, dense + 0.5 * weight if ste else 0)
  np.testing.assert_allclose(jax.grad(loss)(weight), expected, rtol=1e-4)


@pytest.mark.parametrize('kind', ['BINARY_MASK', 'PROB_MASK'])
def test_a_learned_mask(kind):
  mode = sparsity_modes.FewShotMode(2, 2)
  layer = _linear(_settings(mode, topk_estimator_type=kind)).Instantiate()
  variables = layer.init(_KEYS, _X)
  weight, values = (variables['params'][name] for name in ('w', 'w_mask'))

  def outputs(values):
    params = {'w': weight, 'w_mask': values}
    new, state = layer.apply({**variables, 'params': params}, _X, mutable=True)
    return new.sum(), (new, state)

  gradient, (found, state) = jax.grad(outputs, has_aux=True)(values)
  mask = sparsity.largest_in_groups(values, 2, 4)
  floats = np.asarray(mask, np.float32)
  if kind == 'PROB_MASK':
    powers = np.exp(values) * mask
    floats = 2 * powers / powers.sum(-1, keepdims=True)
  np.testing.assert_allclose(found, _X @ (weight * floats), atol=1e-5)
  fixed = state['non_trainable']
  np.testing.assert_array_equal(fixed['w_sparsity_mask'], mask)
  np.testing.assert_allclose(fixed['w_sparsity_mask_float'], floats, rtol=1e-5)
  straight = np.asarray(_X).sum((0, 1))[:, None] * np.asarray(weight)
  if kind == 'BINARY_MASK':
    np.testing.assert_allclose(gradient, straight, rtol=1e-4, atol=1e-6)
  else:
    # The derivative of N times a softmax.
    inner = (straight * floats).sum(-1, keepdims=True) / 2
    expected = floats * (straight - inner)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)
  counts = []
  for _ in range(4):
    counts.append(int(state['non_trainable']['mask_update_count']))
    state = layer.apply(state, _X, mutable=True)[1]
  assert counts == [1, 1, 2, 2]


_MATERIALIZED = [
  dict(),
  dict(order='R', block_size=2, rate=(1, 2)),
  dict(weight=dict(sparse_ste=True)),
  dict(weight=dict(pruned_value=0.25)),
  dict(weight=dict(pruned_value=0.5, pruned_value_trainable=True)),
  dict(rate=30.0, sparsity_type='unstructured'),
  dict(rate=0.5, sparsity_type='channelwise_pruning'),
  dict(score='activation_weighted', track_sad_metric=True),
  dict(topk_estimator_type='PROB_MASK'),
]


@pytest.mark.parametrize('fields', _MATERIALIZED)
def test_materialized_weights_give_the_outputs_of_training(fields):
  training, inference = (
    layers.Repeat.config(
      x_times=2,
      sub_tpl=_linear(_settings(mode, **fields), output_dims=8),
    ).Instantiate()
    for mode in (_TRAINING, _INFERENCE)
  )
  variables = training.init(_KEYS, _X)
  expected, variables = training.apply(variables, _X, mutable=True)
  assert not np.allclose(
    expected, inference.apply({'params': variables['params']}, _X), atol=1e-3
  )
  pruned = sparsifier.materialize(variables)
  wanted = jax.eval_shape(lambda: inference.init(_KEYS, _X))
  assert jax.tree.map(jnp.shape, pruned) == jax.tree.map(jnp.shape, wanted)
  np.testing.assert_allclose(
    inference.apply(pruned, _X), expected, rtol=1e-5, atol=1e-6
  )


def test_other_variables_are_left_alone():
  tree = {
    'params': {'w': np.ones(4), 'a': {'w': np.ones(4)}},
    'non_trainable': {'w_sparsity_mask': np.zeros(4, bool), 'b': {'step': 3}},
  }
  assert str(sparsifier.materialize(tree)) == str(tree)
  assert sparsifier.materialize({'params': {}}) == {'params': {}}


@pytest.mark.parametrize(
  'config',
  [
    layers.quantization.AttentionProjection.config(
      input_dim=8, num_heads=4, dim_per_head=4, attention_combine_dims=True
    ),
    layers.quantization.CombinedQKVProjectionLayer.config(
      input_dim=8, num_heads=4, dim_per_head=4, attention_combine_dims=True
    ),
    layers.quantization.AttentionProjectionLoRA.config(
      input_dim=8, num_heads=4, dim_per_head=4, lora_rank=2
    ),
  ],
  ids=lambda config: config.cls.__name__,
)
def test_projections_have_groups_in_the_weight_as_it_is_stored(config):
  config = config.clone().set(quantization=None)
  layer = config.clone().set(sparsity=_settings()).Instantiate()
  variables = layer.init(_KEYS, _X)
  outputs, state = layer.apply(variables, _X, mutable=True)
  weight = variables['params']['w']
  mask = state['non_trainable']['w_sparsity_mask']
  expected = sparsity.get_sparsity_mask(weight, 2, 4, order='C')
  np.testing.assert_array_equal(mask, expected)
  params = dict(variables['params'], w=jnp.where(mask, weight, 0))
  plain = config.Instantiate().apply({'params': params}, _X)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), outputs, plain
  )


def test_quantized_weights_are_pruned():
  def config(mode, quantization_mode, method='ptq'):
    quantized = quantization_hparams.QuantizationParams(
      quantization_hparams.QuantizationType(method),
      quantization_hparams.QuantizationMode(quantization_mode),
    )
    return _linear(_settings(mode), quantization=quantized)

  training = config(_TRAINING, 'training', 'fq').Instantiate()
  outputs, variables = training.apply(
    training.init(_KEYS, _X), _X, mutable=True
  )
  mask = variables['non_trainable']['w_sparsity_mask']
  by_layer = training.apply(variables, method='quantize_weight')
  specs = training.apply(variables, method='quantized_partition_specs')
  assert {k: set(v) for k, v in specs.items() if v} == {
    kind: set(own) for kind, own in by_layer.items()
  }
  inference = config(_INFERENCE, 'inference')
  of_model = quantize.quantize_variables(inference, variables, _X)
  jax.tree.map(np.testing.assert_array_equal, by_layer, of_model)
  assert (np.asarray(of_model['params']['w'] != 0) <= np.asarray(mask)).all()
  found = inference.Instantiate().apply(of_model, _X)
  np.testing.assert_allclose(found, outputs, atol=1e-5)
  with pytest.raises(errors.UserError, match='the mode TrainingMode, but the'):
    config(_TRAINING, 'inference').Instantiate().init(_KEYS, _X)


def test_what_changed_in_a_mask_is_measured():
  weights = jax.random.normal(jax.random.key(3), [2, 8, 4])
  config = _linear(_settings(track_sad_metric=True))
  (one, two), variables = _steps(config, weights)
  changed = np.mean(np.asarray(one[0]) != np.asarray(two[0]))
  found = variables['non_trainable']['sparse_architecture_divergence']
  np.testing.assert_allclose(found, changed)
  assert 0 < changed < 1


class _Indexed(sparsifier.SparsityBaseLayer):
  """A sparse matrix of a layer with an index, or two matrices."""

  index: int | None = 0
  names: tuple[str, ...] = ('w',)

  def setup(self):
    for name in self.names:
      weight = base_layer.WeightHParams([8, 4])
      self.create_variable(name, weight)
      self.create_sparsity_variables(name, weight)

  def __call__(self, inputs):
    weight = self.sparsifiy(self.theta.w, 'w', inputs, self.index)
    return inputs @ weight


def test_only_some_layers_are_pruned():
  settings = _settings(sparsified_layers=[1])
  for index, kept in ((0, 32), (1, 16)):
    layer = _Indexed.config(index=index, sparsity=settings).Instantiate()
    state = layer.apply(layer.init(_KEYS, _X), _X, mutable=True)[1]
    assert state['non_trainable']['w_sparsity_mask'].sum() == kept
    assert state['non_trainable']['step'] == 1
  with pytest.raises(errors.UserError, match='needs a layer that calls'):
    _linear(settings).Instantiate().init(_KEYS, _X)


def test_a_second_sparse_weight_is_refused():
  layer = _Indexed.config(names=('w', 'v'), sparsity=_settings())
  with pytest.raises(errors.UserError, match='v: a layer can have one sparse'):
    layer.Instantiate().init(_KEYS, _X)
  with pytest.raises(errors.UserError, match='not supported with rank'):
    _linear(_settings(), rank=2).Instantiate().init(_KEYS, _X)


class _SparseLine(lines.Line):
  """A line with a sparse layer before it."""

  def setup(self):
    super().setup()
    schedule = PolynomialDecayParams(20.0, 60.0, 1, 4)
    mode = sparsity_modes.FewShotMode(num_shots=2, target_step=1)
    sparse = _linear(
      _settings(
        mode,
        None,
        sparsity_type='unstructured',
        polynomial_decay_schedule=schedule,
      ),
      input_dims=lines.DIMS,
      output_dims=lines.DIMS,
    )
    self.create_child('sparse', sparse)

  def compute_predictions(self, input_batch):
    input_batch.x = self.sparse(input_batch.x)
    return super().compute_predictions(input_batch)


def test_a_run_that_is_continued_goes_on_with_its_mask(tmp_path):
  folders = [tmp_path / name for name in ('whole', 'continued')]
  for folder, ends in zip(folders, [[5], [2, 5]], strict=True):
    for end in ends:
      task = lines.task(num_train_steps=end)
      task.model = _SparseLine.config()
      lines.Lines(task).train(folder)
  trainer_runs.assert_same_state(*folders, 5)
  masks = [
    next(
      value
      for name, value in trainer_runs.state(folders[1], step).items()
      if name.endswith('w_sparsity_mask')
    )
    for step in (2, 5)
  ]
  kept = [int(mask.sum()) for mask in masks]
  assert 9 > kept[0] > kept[1] > 3
