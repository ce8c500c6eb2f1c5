"""Quantized layers in training, and as they are converted for inference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers
from pax_compat.layers.quantization import quantization_hparams as hparams
from pax_compat.layers.quantization import quantizer

_KEYS = {'params': jax.random.key(1), 'random': jax.random.key(2)}
_X = jax.random.normal(jax.random.key(0), [2, 5, 16])


def _settings(kind, mode='training', act=None, **weights):
  return hparams.QuantizationParams(
    hparams.QuantizationType(kind),
    hparams.QuantizationMode(mode),
    act,
    hparams.WeightQuantizationParams(**weights),
  )


def _both(config, kind, act=None, **weights):
  """Returns the layer of training and that of inference."""
  return [
    config.clone()
    .set(quantization=_settings(kind, mode, act, **weights))
    .Instantiate()
    for mode in ('training', 'inference')
  ]


def _linear(**fields):
  return layers.quantization.Linear.config(
    **{'input_dims': 16, 'output_dims': 8, **fields}
  )


@pytest.mark.parametrize(
  'kind, settings',
  [
    ('fq', dict(precision=4, block_size=8, use_symmetric=False)),
    ('fq', dict(precision=2)),
    ('aqt', dict(precision=4, use_symmetric=False)),
    ('aqt', dict(precision=3, min_clipping=0.7, num_optimize_clipping=4)),
  ],
)
@pytest.mark.parametrize(
  'config',
  [
    _linear(),
    layers.quantization.AttentionProjection.config(
      input_dim=16, num_heads=4, dim_per_head=4
    ),
    layers.quantization.CombinedQKVProjectionLayer.config(
      input_dim=16, num_heads=4, dim_per_head=4, attention_combine_dims=True
    ),
    layers.quantization.OneHeadedAttentionProjection.config(
      input_dim=16, output_dim=4
    ),
    layers.quantization.Einsum.config(
      eqn='...d,dnh->...nh', w_shape=[16, 2, 4], use_bias=True
    ),
  ],
  ids=lambda config: config.cls.__name__,
)
def test_training_rounds_weights_as_inference_does(config, kind, settings):
  training, inference = _both(config, kind, **settings)
  variables = training.init(_KEYS, _X)
  converted = training.apply(variables, method='quantize_weight')
  integers = converted['params']['w']
  assert jnp.issubdtype(integers.dtype, jnp.integer)
  shapes = jax.eval_shape(lambda: inference.init(_KEYS, _X))
  assert jax.tree.map(jnp.shape, converted) == jax.tree.map(jnp.shape, shapes)
  found = inference.apply(converted, _X)
  again = inference.apply(converted, method='quantize_weight')
  assert jax.tree.map(jnp.shape, again) == jax.tree.map(jnp.shape, converted)
  expected = training.apply(variables, _X, rngs=_KEYS)
  for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_table_is_rounded_in_training_as_at_inference():
  ids = jnp.array([[0, 3], [7, 1]])
  table = layers.quantization.Embedding.config(num_classes=8, input_dims=16)
  for kind in ('fq', 'aqt'):
    training, inference = _both(table, kind, precision=4)
    variables = training.init(_KEYS, ids)
    converted = training.apply(variables, method='quantize_weight')
    found = inference.apply(converted, ids)
    np.testing.assert_allclose(found, training.apply(variables, ids), atol=1e-5)
    plain = variables['params']['emb_var'][ids]
    assert 0 < np.abs(found - plain).mean() < 0.1 * np.abs(plain).mean()
  softmax = layers.quantization.SharedEmbeddingSoftmax.config(
    num_classes=8, input_dims=16, quantization=_settings('fq', precision=4)
  ).Instantiate()
  variables = softmax.init(_KEYS, ids, method='emb_lookup')
  table = variables['params']['logits_ffn']['linear']['w'].T
  found = softmax.apply(variables, ids, method='emb_lookup')
  assert 0 < np.abs(found - table[ids]).mean() < 0.1 * np.abs(table).mean()


@pytest.mark.parametrize('block_size', [0, 4])
@pytest.mark.parametrize(
  'cls', ['SharedEmbeddingSoftmax', 'NClassMajorSharedEmbeddingSoftmax']
)
def test_rows_of_a_softmax_are_those_of_its_logits(cls, block_size):
  # As many classes as blocks.
  config = getattr(layers.quantization, cls).config(
    num_classes=4, input_dims=16
  )
  training, inference = _both(config, 'ptq', block_size=block_size)
  ids = jnp.arange(4)
  variables = training.init(_KEYS, _X, method='get_logits')
  converted = training.apply(variables, method='quantize_weight')
  found = inference.apply(converted, ids, method='emb_lookup')
  expected = training.apply(variables, ids, method='emb_lookup')
  assert 0 < np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
  logits = inference.apply(converted, _X, method='get_logits')
  np.testing.assert_allclose(logits, _X @ found.T, atol=1e-4)


def test_metadata_of_sharding_is_that_of_stored_weights():
  layer, _ = _both(
    _linear(
      mesh_axis_names=['data', 'mdl'],
      weight_split_dims_mapping=base_layer.BaseLayer.WeightSharding(
        wt=['mdl', 'data']
      ),
    ),
    'ptq',
    precision=4,
    block_size=8,
    use_symmetric=False,
  )
  variables = layer.init(_KEYS, _X)
  specs = layer.apply(variables, method='quantized_partition_specs')['params']
  spec = jax.sharding.PartitionSpec
  assert {name: x.meta for name, x in specs.items()} == {
    'w': spec('mdl', None, 'data'),
    'w_quantized_scale': spec('mdl', 'data'),
    'w_quantized_zp': spec('mdl', 'data'),
  }


def test_weights_of_repeats_are_stacked():
  _, inference = _both(_linear(input_dims=8), 'ptq')
  repeated = layers.Repeat.config(
    sub_tpl=_linear(input_dims=8, quantization=_settings('ptq')),
    x_times=3,
    mesh_axis_names=['mdl'],
    weight_split_dims_mapping=layers.Repeat.WeightSharding.config(sub=['mdl']),
  ).Instantiate()
  x = _X[..., :8]
  variables = repeated.init(_KEYS, x)
  converted = repeated.apply(variables, method='quantize_weight')
  shapes = jax.tree.map(lambda x: (x.shape, x.dtype.name), converted)
  assert shapes['params']['sub'] == {
    'w': ((3, 8, 8), 'int8'),
    'w_quantized_scale': ((3, 8), 'float32'),
  }
  specs = repeated.apply(variables, method='quantized_partition_specs')
  spec = jax.sharding.PartitionSpec
  assert specs['params']['sub']['w'].meta == spec('mdl', None, None)
  found = repeated.clone().apply(variables, x)
  for i in range(3):
    one = {name: w[i] for name, w in converted['params']['sub'].items()}
    x = inference.apply({'params': one}, x)
  assert 0 < np.abs(found - x).mean() < 0.02 * np.abs(found).mean()


def test_inputs_are_rounded_in_blocks_too():
  act = hparams.ActQuantizationParams(precision=8, symmetric=False)
  training, inference = _both(_linear(), 'ptq', act, block_size=4)
  variables = training.init(_KEYS, _X)
  converted = training.apply(variables, method='quantize_weight')
  expected = training.apply(variables, _X)
  error = np.abs(inference.apply(converted, _X) - expected).max()
  assert 0 < error < 0.02 * np.abs(expected).max()


def test_steps_and_the_largest_input_are_kept():
  layer = _linear(
    quantization=_settings(
      'fq_vn', use_step_count=True, vn_scale=0.1, vn_start_step=1
    )
  ).Instantiate()
  variables = layer.init(_KEYS, _X)
  outputs, state = layer.apply(
    variables, _X, rngs=_KEYS, mutable=[base_layer.NON_TRAINABLE]
  )
  assert state['non_trainable']['step_count'] == 1
  np.testing.assert_allclose(outputs, _X @ variables['params']['w'], atol=1e-5)
  later = layer.apply({**variables, **state}, _X, rngs=_KEYS)
  assert np.abs(later - outputs).max() > 0
  layer = _linear(quantization=_settings('fr', 'calib')).Instantiate()
  variables = layer.init(_KEYS, _X)
  _, state = layer.apply(variables, _X, mutable=[base_layer.NON_TRAINABLE])
  assert state['non_trainable']['framestat'] == jnp.max(_X).astype(jnp.bfloat16)
  grads = jax.grad(lambda v: layer.apply(v, _X).sum())(variables)
  assert not np.any(grads['params']['w'])


def test_training_with_products_of_integers():
  layer = _linear(quantization=_settings('ptq', 'qt')).Instantiate()
  variables = layer.init(_KEYS, _X)

  def loss(params, x):
    return jnp.sum(layer.apply({'params': params}, x, rngs=_KEYS) ** 2)

  grads = jax.grad(loss)(variables['params'], _X)['w']
  w = variables['params']['w']
  expected = jax.grad(lambda w: jnp.sum((_X @ w) ** 2))(w)
  error = np.abs(grads - expected).max()
  assert 0 < error < 0.03 * np.abs(expected).max()


def test_a_matrix_of_low_rank_is_quantized():
  training, inference = _both(_linear(rank=3), 'fq', use_int4_packed_weights=0)
  variables = training.init(_KEYS, _X)
  assert set(variables['params']) == {'w_a', 'w_b'}
  converted = training.apply(variables, method='quantize_weight')
  np.testing.assert_allclose(
    inference.apply(converted, _X), training.apply(variables, _X), atol=1e-5
  )


@pytest.mark.parametrize('order', [None, 'pre', 'mid', 'post'])
def test_updates_of_low_rank(order):
  fields = dict(
    lora_rank=2,
    norm_order=order,
    quantization=_settings('ptq', 'inference'),
  )
  quantized = layers.quantization
  linear = quantized.LinearLoRA.config(input_dims=16, output_dims=8, **fields)
  heads = quantized.AttentionProjectionLoRA.config(
    input_dim=6,
    num_heads=4,
    dim_per_head=4,
    is_output_projection=True,
    init_method='output_dim',
    max_reduction=False,
    **fields,
  )
  for config, x in ((linear, _X), (heads, _X.reshape(2, 5, 4, 4))):
    layer = config.Instantiate()
    variables = layer.init(_KEYS, x)
    params = variables['params']
    assert params['w'].dtype == jnp.int8
    outputs = layer.apply(variables, x)
    # The integers are 0, so that the output is the update and the bias.
    is_zero = config is linear and order != 'post'
    assert np.any(outputs) != is_zero or order == 'post'
    params['w_right'] = jnp.ones_like(params['w_right'])
    assert np.any(layer.apply({'params': params}, x))


def test_attention_rounds_its_products():
  fields = dict(input_dim=16, hidden_dim=16, num_heads=4)
  act = hparams.ActQuantizationParams(precision=23)
  mask = jnp.tri(5, dtype=bool)[None, None]
  plain = layers.DotProductAttention.config(**fields).Instantiate()
  variables = plain.init(_KEYS, _X, _X, _X, mask)
  expected, _ = plain.apply(variables, _X, _X, _X, mask)
  config = layers.quantization.DotProductAttention.config(**fields)
  for bits, error in ((23, 1e-5), (4, 0.3)):
    act = hparams.ActQuantizationParams(precision=bits)
    layer = config.clone().set(quantization=_settings('aqt', act=act))
    found, _ = layer.Instantiate().apply(variables, _X, _X, _X, mask)
    difference = np.abs(found - expected).max()
    assert difference < error * np.abs(expected).max()
  assert difference > 1e-4
  with pytest.raises(errors.UserError, match="expected 'aqt'"):
    config.Instantiate().init(_KEYS, _X, _X, _X, mask)


class Own(quantizer.QuantizationLayer):
  """A layer that is written as those of Pax are."""

  _PACK_4BIT_DIM = 0

  def setup(self):
    self.set_up_weights(
      weight_name='w',
      weight_params=base_layer.WeightHParams([16, 8]),
      scale_shape=[8],
    )

  def __call__(self, x):
    return self.quantized_einsum(
      eqn='...y,yz->...z', x=x, w=self.theta.w, reshape=[]
    )


def test_a_layer_of_users_is_quantized():
  own = Own.config()
  training, inference = _both(own, 'fq', precision=4)
  linear, _ = _both(_linear(), 'fq', precision=4)
  variables = training.init(_KEYS, _X)
  converted = linear.apply(variables, method='quantize_weight')
  np.testing.assert_allclose(
    inference.apply(converted, _X), training.apply(variables, _X), atol=1e-5
  )
  plain = own.set(quantization=None).Instantiate()
  np.testing.assert_allclose(
    plain.apply(variables, _X), _X @ variables['params']['w'], rtol=1e-6
  )
