"""A config can replace the products and lookups of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, config, errors, layers
from pax_compat.layers import base_ops

_INPUTS = jax.random.normal(jax.random.key(1), [2, 3, 4])
_IDS = jnp.array([[1, 0, 2]])


class Doubled(base_ops.EinsumOp):
  """A product twice as large, with a weight of its own."""

  def setup(self):
    self.create_variable(
      'factor',
      base_layer.WeightHParams([], base_layer.WeightInit.Constant(2.0)),
    )

  def __call__(self, equation, *args):
    return self.theta.factor * super().__call__(equation, *args)


class DoubledLookup(base_ops.ArrayLookup):
  def __call__(self, x, idx):
    return 2 * super().__call__(x, idx)


def _outputs(tpl: config.Config, *inputs, method='__call__'):
  layer = tpl.Instantiate()
  variables = base_layer.unbox(
    layer.init(jax.random.key(0), *inputs, method=method)
  )
  return layer.apply(variables, *inputs, method=method), variables


_HEADS = dict(input_dim=4, num_heads=2, dim_per_head=3, use_bias=False)
_SOFTMAX = dict(input_dims=4, num_classes=5)
_CASES = {
  'linear': (
    layers.Linear.config(input_dims=4, output_dims=5),
    'einsum_tpl',
    (_INPUTS,),
    '__call__',
  ),
  'einsum': (
    layers.Einsum.config(eqn='btd,dnh->btnh', w_shape=(4, 2, 3)),
    'einsum_op_tpl',
    (_INPUTS,),
    '__call__',
  ),
  'projection': (
    layers.AttentionProjection.config(**_HEADS),
    'einsum_tpl',
    (_INPUTS,),
    '__call__',
  ),
  'combined': (
    layers.CombinedQKVProjectionLayer.config(**_HEADS),
    'einsum_tpl',
    (_INPUTS,),
    '__call__',
  ),
  'one head': (
    layers.OneHeadedAttentionProjection.config(
      input_dim=4, output_dim=3, use_bias=False
    ),
    'einsum_tpl',
    (_INPUTS,),
    '__call__',
  ),
  'logits': (
    layers.NClassMajorSharedEmbeddingSoftmax.config(**_SOFTMAX, use_bias=False),
    'einsum_tpl',
    (_INPUTS,),
    'get_logits',
  ),
  'one-hot lookup': (
    layers.SharedEmbeddingSoftmax.config(**_SOFTMAX, lookup_style='matmul'),
    'einsum_tpl',
    (_IDS,),
    'emb_lookup',
  ),
  'lookup': (
    layers.SharedEmbeddingSoftmax.config(**_SOFTMAX),
    'array_lookup_tpl',
    (_IDS,),
    'emb_lookup',
  ),
  'positions': (
    layers.TrainablePositionalEmbedding.config(
      embedding_dims=4, max_seq_length=3
    ),
    'einsum_tpl',
    (3, _IDS),
    '__call__',
  ),
}


@pytest.mark.parametrize('name', _CASES)
def test_a_config_replaces_the_product(name):
  tpl, field, inputs, method = _CASES[name]
  outputs, _ = _outputs(tpl, *inputs, method=method)
  is_lookup = field == 'array_lookup_tpl'
  replaced = tpl.clone().set(
    **{field: (DoubledLookup if is_lookup else Doubled).config()}
  )
  doubled, variables = _outputs(replaced, *inputs, method=method)
  if not is_lookup:
    assert variables['params']['einsum']['factor'] == 2.0
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(2 * x, y, rtol=1e-6),
    outputs,
    doubled,
  )


def test_experts_use_the_ops_of_their_config():
  tpl = layers.TransformerFeedForwardMoe.config(
    input_dims=4,
    hidden_dims=6,
    num_experts=2,
    num_groups=1,
    use_gated_activation=True,
    activation_tpl=layers.Identity.config(),
    add_skip_connection=False,
  )
  outputs, _ = _outputs(tpl, _INPUTS)
  tpl.einsum_tpl = Doubled.config()
  doubled, variables = _outputs(tpl, _INPUTS)
  names = {k for k in variables['params'] if k.endswith('einsum')}
  assert names == {'dispatch_einsum', 'ffn2_einsum', 'combine_einsum'}
  # Doubled tokens are squared by the gate.
  np.testing.assert_allclose(16 * outputs, doubled, rtol=1e-5, atol=1e-6)


def test_a_gated_product_needs_three_arrays():
  with pytest.raises(errors.UserError, match='multiplies 3 arrays, got 2'):
    _outputs(base_ops.EinsumGatedOp.config(), 'ab,bc->ac', _INPUTS[0], _INPUTS)
