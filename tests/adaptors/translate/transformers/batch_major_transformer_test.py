"""Translated batch-major Transformer layers against Lingvo's, run for real.

Shapes: B batch, T time, S source time, D model dims, N heads.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.layers.attentions import attention_masks
from tests.adaptors.translate.attention_inputs import (
  PADDINGS,
  SEGMENT_IDS,
  SOURCE,
  SOURCE_PADDINGS,
  D,
  N,
  X,
)
from tests.adaptors.translate.parity import check_layer, issues_of

SOURCE_IDS = np.array(
  [[1, 2, 2, 3, 3], [1, 1, 2, 2, 0], [1, 1, 1, 1, 1]], np.int32
)


@pytest.fixture(scope='module')
def lingvo():
  """Lingvo's module of batch-major attention."""
  return lingvo_runtime.module('lingvo.core.batch_major_attention')


def _attention(lingvo, **fields):
  return lingvo.TransformerAttentionLayer.Params().Set(
    name='atten', input_dim=D, num_heads=N, **fields
  )


def _layer(lingvo, cls='TransformerLayer', **fields):
  params = (
    getattr(lingvo, cls)
    .Params()
    .Set(name='layer', input_dim=D, num_heads=N, **fields)
  )
  params.tr_fflayer_tpl.hidden_dim = 16
  return params


def _fprop(layer, theta, x):
  """Computes a layer of attention to itself."""
  return layer.FProp(theta, x, None, PADDINGS)[0]


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'is_masked': True, 'hidden_dim': 12},
    {'is_masked': True, 'add_unnormalized_input': False},
    {'pre_layer_norm': False},
    {'primer_hybrid_norm': True},
    {'ln_tpl': None, 'atten_dropout_prob': 0.3},
    {'residual_droppath_prob': 0.5, 'residual_dropout_prob': 0.3},
    {'input_dim': dict(query=D, key=D, value=D)},
  ],
  ids=','.join,
)
def test_transformer_attention(lingvo, fields):
  check_layer(
    _attention(lingvo).Set(**fields),
    [X],
    fprop=_fprop,
    call=lambda layer, x: layer(x, PADDINGS)[0],
  )


@pytest.mark.parametrize(
  'fields', [{}, {'num_heads': None, 'output_dim': D, 'compute_flops': True}]
)
@pytest.mark.parametrize('masked', [False, True])
def test_transformer_layer(lingvo, fields, masked):
  params = _layer(lingvo, mask_self_atten=masked).Set(**fields)
  params.tr_atten_tpl.hidden_dim = D
  check_layer(
    params,
    [X],
    fprop=lambda layer, theta, x: layer.FProp(theta, x, PADDINGS)[0],
    call=lambda layer, x: layer(x, PADDINGS)[0],
    do_eval=masked,
  )


@pytest.mark.parametrize('do_eval', [False, True])
def test_transformer_layer_of_common_params(lingvo, do_eval):
  params = lingvo.TransformerLayer.CommonParams(
    input_dim=D,
    atten_num_heads=N,
    mask_self_atten=True,
    fflayer_hidden_dim=12,
    dropout_prob=0.1 if do_eval else 0.0,
  )
  check_layer(
    params,
    [X],
    fprop=lambda layer, theta, x: layer.FProp(theta, x, PADDINGS)[0],
    call=lambda layer, x: layer(x, PADDINGS)[0],
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'add_unnormalized_input': False},
    {'primer_hybrid_norm': True},
    {'pre_layer_norm': False},
  ],
  ids=','.join,
)
def test_decoder_layer(lingvo, fields):
  params = _layer(lingvo, 'TransformerDecoderLayer')
  params.tr_atten_tpl.Set(**fields)
  mask = attention_masks.padding_mask(SOURCE_PADDINGS)
  check_layer(
    params,
    [X, SOURCE],
    fprop=lambda layer, theta, x, source: layer.FProp(
      theta, x, PADDINGS, source, SOURCE_PADDINGS
    )[0],
    call=lambda layer, x, source: layer(
      x, PADDINGS, cross_inputs=source, cross_attention_mask=mask
    )[0],
  )


def test_decoder_layer_whose_source_has_other_dims(lingvo):
  params = _layer(lingvo, 'TransformerDecoderLayer').Set(
    aux_atten_input_dim=dict(query=D, key=3, value=3)
  )
  mask = attention_masks.padding_mask(SOURCE_PADDINGS)
  check_layer(
    params,
    [X, SOURCE[..., :3]],
    fprop=lambda layer, theta, x, source: layer.FProp(
      theta, x, PADDINGS, source, SOURCE_PADDINGS
    )[0],
    call=lambda layer, x, source: layer(
      x, PADDINGS, cross_inputs=source, cross_attention_mask=mask
    )[0],
  )


def test_decoder_layer_of_packed_examples(lingvo):
  tf = lingvo_runtime.module('tensorflow')
  mask = attention_masks.segment_mask(SEGMENT_IDS)
  cross_mask = attention_masks.segment_mask(SEGMENT_IDS, SOURCE_IDS)
  check_layer(
    _layer(lingvo, 'TransformerDecoderLayer', packed_input=True),
    [X, SOURCE],
    fprop=lambda layer, theta, x, source: layer.FProp(
      theta,
      x,
      PADDINGS,
      source,
      SOURCE_PADDINGS,
      segment_mask=lingvo.CausalSegmentMask(SEGMENT_IDS, tf.float32),
      aux_segment_mask=lingvo.SegmentMask(SEGMENT_IDS, SOURCE_IDS),
    )[0],
    call=lambda layer, x, source: layer(x, PADDINGS, mask, source, cross_mask)[
      0
    ],
    do_eval=False,
  )


def test_refuses_several_kinds_of_heads(lingvo):
  params = _attention(lingvo).Set(num_heads=[2, 2])
  params.atten_tpl = [lingvo.MultiHeadedAttention.Params()] * 2
  assert 'layer.atten_tpl' in issues_of(params)[0]


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('add_skip_connection', False),
    ('device_mesh', np.zeros([1, 1])),
  ],
)
def test_refuses_other_kinds_of_layers(lingvo, field, value):
  issues = issues_of(_attention(lingvo).Set(**{field: value}))
  assert f'layer.{field}' in '\n'.join(issues)


def test_refuses_attentions_that_differ_in_what_they_share(lingvo):
  params = _layer(lingvo, 'TransformerDecoderLayer')
  params.tr_self_atten_tpl = params.tr_atten_tpl.Copy()
  params.tr_self_atten_tpl.residual_dropout_prob = 0.1
  (issue,) = issues_of(params)
  assert 'residual_dropout_prob' in issue


def test_refuses_another_class_of_feed_forward(lingvo):
  params = _layer(lingvo)
  params.tr_fflayer_tpl = (
    lingvo.TransformerFeedForwardLayerWithTaskId.Params().Set(hidden_dim=16)
  )
  (issue,) = issues_of(params)
  assert 'tr_fflayer_tpl' in issue and 'WithTaskId' in issue
