"""Configs of Grok-1; its experiments are held against Pax's recordings."""

import jax
import numpy as np

from pax_compat import base_layer, layers
from pax_compat.layers.transformer_models import grok


def test_products_in_8_bits():
  """All products of a block with experts, but for its gate and attention."""
  block = grok.GrokStackedTransformerHParams(
    8, 16, 4, 2, 2, moe=True, e_dim=2, capacity_factor=2.0, use_fp8=True
  )
  layer = block.Instantiate()
  x, paddings = np.ones([2, 4, 8], np.float32), np.zeros([2, 4], np.float32)
  mask = np.zeros([2, 1, 4, 4], np.float32)
  variables = base_layer.unbox(
    layer.init(jax.random.key(0), x, paddings, segment_mask=mask)
  )
  flat = jax.tree_util.tree_leaves_with_path(variables[base_layer.PARAMS])
  paths = {'/'.join(key.key for key in path) for path, _ in flat}
  scaled = {path.removesuffix('/input_scale') for path in paths}
  moe, atten = 'x_layers_0/ff_layer', 'x_layers_0/self_attention'
  assert scaled - paths == {
    f'{moe}/dispatch_einsum',
    f'{moe}/gated_ffn1_einsum',
    f'{moe}/ffn2_einsum',
    f'{moe}/combine_einsum',
    f'{atten}/query/einsum',
    f'{atten}/key/einsum',
    f'{atten}/value/einsum',
    f'{atten}/post/einsum',
  }
  dense = grok.GrokStackedTransformerHParams(8, 16, 4, 2, 2, use_fp8=True)
  linear = dense.transformer_layer_params_tpl.tr_fflayer_tpl.fflayer_tpl
  assert linear.linear_tpl.einsum_tpl.cls is layers.Fp8EinsumOp
