"""Transformer layers and their feed-forward against Lingvo's, run for real.

Shapes: B batch, T time, S source time, D model dims, F dims of the
feed-forward's inner layer.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.layers import activations
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)
from pax_compat.layers.transformers.transformer_layers import Transformer
from tests.adaptors.translate.attention_inputs import (
  PADDINGS,
  SEGMENT_IDS,
  SOURCE,
  SOURCE_PADDINGS,
  D,
  N,
  X,
)
from tests.adaptors.translate.same_weights import by_rules, check

F = 10
SOURCE_IDS = np.array(
  [[1, 2, 2, 3, 3], [1, 1, 2, 0, 0], [1, 1, 1, 1, 0]], np.int32
)


@pytest.fixture(scope='module')
def lingvo():
  """Lingvo's module of attention."""
  return lingvo_runtime.module('lingvo.core.batch_major_attention')


# Of the feed-forward's two projections, and of whole layers.
_PROJECTIONS = (
  (r'fflayer\.fc\[0\]\.', 'ffn_layer1.'),
  (r'fflayer\.fc\[1\]\.', 'ffn_layer2.'),
  (r'(ffn_layer\d)\.w$', r'\1.linear.w'),
  (r'(ffn_layer\d)\.b$', r'\1.bias.b'),
)
_PARTS = (
  (r'^fflayer\.', 'ff_layer.'),
  (r'^self_atten\.atten\.', 'self_attention.'),
  (r'^self_atten\.', ''),
  (r'^cross_atten\.atten\.', 'cross_attention.'),
  (r'^cross_atten\.((pre_|post_)?)', r'\1cross_'),
)
POLICIES = {
  'pre': {},
  'post_skip': {'pre_layer_norm': False},
  'primer_hybrid': {'primer_hybrid_norm': True},
}


@pytest.mark.parametrize(
  ('theirs', 'ours'),
  [
    *((POLICIES[name], {'norm_policy': name}) for name in POLICIES),
    (
      {'activation': 'GELU'},
      {'activation_tpl': activations.GELU.config(approximate=False)},
    ),
    ({'residual_weight': 0.5}, {'residual_weight': 0.5}),
    (
      {'add_skip_connection': False, 'output_dim': 3},
      {'add_skip_connection': False, 'output_dims': 3},
    ),
  ],
  ids=lambda fields: ','.join(fields),
)
def test_feed_forward(theirs, ours):
  module = lingvo_runtime.module('lingvo.core.layers_with_attention')
  check(
    TransformerFeedForward.config(input_dims=D, hidden_dims=F, **ours),
    module.TransformerFeedForwardLayer.Params().Set(
      name='ff', input_dim=D, hidden_dim=F, **theirs
    ),
    [X],
    fprop=lambda layer, theta, x: layer.FProp(theta, x, PADDINGS),
    call=lambda layer, x: layer(x, PADDINGS),
    rename=by_rules(*_PROJECTIONS),
  )


@pytest.mark.parametrize(
  ('build', 'activation'),
  [
    ('DenseReluDenseGatedGELU', activations.GELU),
    ('DenseReluDenseGatedSILU', activations.SiLU),
  ],
)
def test_gated_feed_forward(build, activation):
  """The feed-forward of Lingvo's large models: neither norm nor residual."""
  module = lingvo_runtime.module('lingvo.core.gshard_builder')
  builder = module.DenseBuilder.Params().Set(model_dim=D, ff_dim=F)
  params = getattr(builder.Instantiate(), build)('ff')

  ids = lingvo_runtime.module('tensorflow').constant(SEGMENT_IDS)

  check(
    TransformerFeedForward.config(
      input_dims=D,
      hidden_dims=F,
      has_bias=False,
      use_gated_activation=True,
      activation_tpl=activation.config(),
      ln_tpl=norm_layers.IdentityNorm.config(),
      add_skip_connection=False,
    ),
    params,
    [X],
    # It takes packed examples and their positions, but ignores them.
    fprop=lambda layer, theta, x: layer.FProp(theta, x, ids, ids)[0],
    call=lambda layer, x: layer(x),
    rename=by_rules(
      (r'^w\.wi_0$', 'ffn_layer1_gate.linear.w'),
      (r'^w\.wi_1$', 'ffn_layer1.linear.w'),
      (r'^w\.wo$', 'ffn_layer2.linear.w'),
    ),
  )


def _layer(lingvo, **fields):
  """Returns Params of a Transformer layer; some are those of its halves."""
  params = lingvo.TransformerLayer.Params().Set(
    name='layer', input_dim=D, num_heads=N, **fields
  )
  params.tr_fflayer_tpl.hidden_dim = F
  return params


def _transformer(**fields):
  return Transformer.config(input_dims=D, hidden_dims=F, num_heads=N, **fields)


@pytest.mark.parametrize(
  ('policy', 'causal'),
  [('pre', True), ('post_skip', False), ('primer_hybrid', True)],
)
def test_transformer_layer(lingvo, policy, causal):
  params = _layer(lingvo, mask_self_atten=causal)
  params.tr_atten_tpl.Set(**POLICIES[policy])
  params.tr_fflayer_tpl.Set(**POLICIES[policy])
  check(
    _transformer(norm_policy=policy, mask_self_attention=causal),
    params,
    [X],
    fprop=lambda layer, theta, x: layer.FProp(theta, x, PADDINGS)[0],
    call=lambda layer, x: layer(x, PADDINGS)[0],
    rename=by_rules(*_PARTS, *_PROJECTIONS),
  )


@pytest.mark.parametrize(
  ('policy', 'packed'), [('pre', True), ('primer_hybrid', False)]
)
def test_transformer_layer_with_cross_attention(lingvo, packed, policy):
  params = _layer(
    lingvo, has_aux_atten=True, packed_input=packed, mask_self_atten=not packed
  )
  params.tr_atten_tpl.Set(**POLICIES[policy])
  params.tr_fflayer_tpl.Set(**POLICIES[policy])
  mask = cross_mask = None
  if packed:
    mask = attention_masks.segment_mask(SEGMENT_IDS)
    cross_mask = attention_masks.segment_mask(SEGMENT_IDS, SOURCE_IDS)
  else:
    cross_mask = attention_masks.padding_mask(SOURCE_PADDINGS)

  def fprop(layer, theta, x, source):
    given = {}
    if packed:
      given['segment_mask'] = lingvo.SegmentMask(SEGMENT_IDS, SEGMENT_IDS)
      given['aux_segment_mask'] = lingvo.SegmentMask(SEGMENT_IDS, SOURCE_IDS)
    return layer.FProp(theta, x, PADDINGS, source, SOURCE_PADDINGS, **given)[0]

  check(
    _transformer(
      norm_policy=policy,
      use_cross_attention=True,
      mask_self_attention=not packed,
    ),
    params,
    [X, SOURCE],
    fprop=fprop,
    call=lambda layer, x, source: layer(x, PADDINGS, mask, source, cross_mask)[
      0
    ],
    rename=by_rules(*_PARTS, *_PROJECTIONS),
  )
