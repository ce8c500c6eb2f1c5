"""Translated batch-major attention against Lingvo's, run for real.

Shapes: B batch, T time, S source time, D model dims, N heads.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  AttentionMask,
)
from tests.adaptors.translate.attention_inputs import (
  PADDINGS,
  SEGMENT_IDS,
  SOURCE,
  SOURCE_PADDINGS,
  B,
  D,
  N,
  T,
  X,
)
from tests.adaptors.translate.parity import check_layer, issues_of

RNG = np.random.default_rng(2)


@pytest.fixture(scope='module')
def lingvo():
  """Lingvo's module of batch-major attention."""
  return lingvo_runtime.module('lingvo.core.batch_major_attention')


def _attention(lingvo, **fields):
  return lingvo.MultiHeadedAttention.Params().Set(
    name='atten', input_dim=D, hidden_dim=16, num_heads=N, **fields
  )


def _check_causal(lingvo, params, do_eval=True):
  """Compares self-attention that is causal and has paddings."""
  mask = attention_masks.padding_mask(PADDINGS)

  def fprop(layer, theta, x):
    future = np.tile(lingvo.CausalPadding(T)[None], [B, 1, 1])
    return layer.FProp(theta, x, x, x, PADDINGS, None, future)[0]

  check_layer(
    params,
    [X],
    fprop=fprop,
    call=lambda layer, x: layer(
      x, x, x, atten_mask=AttentionMask(mask, causal=True)
    )[0],
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'use_bias': False, 'enable_per_dim_scale': False},
    {'enable_query_scale': False},
    {'dim_per_head': 3, 'enable_per_dim_scale': False, 'hidden_dim': 32},
    {'hidden_dim': 15},
    {'atten_logit_cap': 0.5},
    {'atten_logit_cap': -1.0, 'atten_extra_logit': 0.7},
    {'enable_scaling_code_motion': True, 'atten_extra_logit': 0.7},
    {'enable_qkv_proj_in_onestep': True},
    {'enable_qkv_proj_in_onestep': True, 'use_bias': False},
    {'enable_value_proj': False, 'hidden_dim': D},
    {'enable_ctx_post_proj': False, 'output_dim': 5},
  ],
  ids=','.join,
)
def test_attention(lingvo, fields):
  _check_causal(lingvo, _attention(lingvo).Set(**fields))


def test_attention_while_training(lingvo):
  _check_causal(lingvo, _attention(lingvo), do_eval=False)


def test_attention_with_dropout_at_evaluation(lingvo):
  _check_causal(lingvo, _attention(lingvo, atten_dropout_prob=0.4))


@pytest.mark.parametrize('embedding_dim', [0, 4])
def test_attention_with_rotated_heads(lingvo, embedding_dim):
  layers = lingvo_runtime.module('lingvo.core.layers')
  rope = layers.RotaryPositionalEmbeddingLayer.Params().Set(
    embedding_dim=embedding_dim, max_timescale=50
  )
  _check_causal(lingvo, _attention(lingvo, rope_tpl=rope))


@pytest.mark.parametrize('output_dim', [None, 5])
def test_attention_to_something_else(lingvo, output_dim):
  dims = dict(query=D, key=3, value=7)
  mask = attention_masks.padding_mask(SOURCE_PADDINGS)
  check_layer(
    _attention(lingvo, output_dim=output_dim).Set(input_dim=dims),
    [X, SOURCE[..., :3], SOURCE[..., 1:]],
    fprop=lambda layer, theta, q, k, v: layer.FProp(
      theta, q, k, v, SOURCE_PADDINGS
    )[0],
    call=lambda layer, q, k, v: layer(q, k, v, atten_mask=mask)[0],
  )


def test_attention_to_packed_examples(lingvo):
  tf = lingvo_runtime.module('tensorflow')
  mask = attention_masks.segment_mask(SEGMENT_IDS)

  def fprop(layer, theta, x):
    segments = lingvo.CausalSegmentMask(SEGMENT_IDS, tf.float32)
    return layer.FProp(theta, x, x, x, PADDINGS, segments)[0]

  check_layer(
    _attention(lingvo, packed_input=True),
    [X],
    fprop=fprop,
    call=lambda layer, x: layer(
      x, x, x, atten_mask=AttentionMask(mask, causal=True)
    )[0],
    do_eval=False,
  )


@pytest.mark.parametrize('is_output', [False, True])
@pytest.mark.parametrize('use_bias', [False, True])
def test_projection(lingvo, is_output, use_bias):
  inputs = RNG.normal(size=(B, T, N, 2)).astype(np.float32) if is_output else X
  params = lingvo.MultiHeadedProjectionLayer.Params().Set(
    name='proj',
    input_dim=D,
    num_heads=N,
    dim_per_head=2,
    is_output_projection=is_output,
    use_bias=use_bias,
  )
  check_layer(
    params,
    [inputs],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )


def test_scale_of_each_dim(lingvo):
  check_layer(
    lingvo.PerDimScaleLayer.Params().Set(name='scale', dim=D),
    [X],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('enable_value_proj', False),
    ('enable_qk_proj_in_onestep', True),
    ('use_mqa', True),
    ('enable_shaped_attention', True),
    ('query_stride', 2),
    ('query_first_n', 1),
    ('use_scale_invariant_atten', True),
    ('attn_add_memory', True),
  ],
)
def test_refuses_other_kinds_of_attention(lingvo, field, value):
  (issue,) = issues_of(_attention(lingvo).Set(**{field: value}))
  assert f'layer.{field}' in issue


def test_refuses_other_settings_of_parts(lingvo):
  params = _attention(lingvo)
  params.proj_tpl.Set(input_proj_bias_rank_3=True, dim_per_head=7)
  params.dropout_tpl.noise_shape_broadcast_dims = [1]
  params.qdomain.default = lingvo_runtime.module(
    'lingvo.core.quant_utils'
  ).PassiveAsymQDomain.Params()
  issues = '\n'.join(issues_of(params))
  for path in (
    'layer.proj_tpl.dim_per_head',
    'layer.proj_tpl.input_proj_bias_rank_3',
    'layer.dropout_tpl.noise_shape_broadcast_dims',
    'layer.qdomain.default',
  ):
    assert path in issues


@pytest.mark.parametrize(
  'name', ['SingleHeadedAttention', 'MultiHeadedFavorAttention']
)
def test_refuses_other_classes(lingvo, name):
  params = (
    getattr(lingvo, name).Params().Set(name='atten', input_dim=D, hidden_dim=16)
  )
  (issue,) = issues_of(params)
  assert name in issue and 'MultiHeadedAttention' in issue
