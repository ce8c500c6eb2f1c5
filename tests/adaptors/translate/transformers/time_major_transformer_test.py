"""Translated time-major Transformer layers against Lingvo's, run for real.

`layers_test` has their common options.

Legend: B batch, T time, S time of another sequence, D model dims.
"""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.layers.attentions.attention_masks import (
  combine_masks,
  padding_mask,
  segment_mask,
)
from tests.adaptors.translate.parity import (
  check_layer,
  issues_of,
  translate,
)

B, T, S, D = 3, 7, 5, 8


def _paddings(length):
  """Returns paddings of rows of full, middle and short length."""
  return (np.arange(length) >= np.array([[length], [4], [1]])).astype('f')


PADDINGS, AUX_PADDINGS = _paddings(T), _paddings(S)
# Packed examples; 0 is padding.
IDS = np.array(
  [[1, 1, 2, 2, 2, 3, 3], [1, 2, 2, 2, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]]
)
AUX_IDS = np.array([[1, 2, 2, 3, 3], [1, 1, 2, 2, 0], [1, 0, 0, 0, 0]])

_counter = itertools.count()


def _with_attention(cls, **fields):
  module = lingvo_runtime.module('lingvo.core.layers_with_attention')
  # Lingvo takes layers of one name for the same.
  name = f'transformer_{next(_counter)}'
  return getattr(module, cls).Params().Set(name=name, **fields)


def _attention(**fields):
  params = _with_attention(
    'TransformerAttentionLayer',
    source_dim=D,
    num_attention_heads=2,
    **fields,
  )
  params.atten_tpl.Set(enable_ctx_pre_proj=True, enable_ctx_post_proj=True)
  return params


def _layer(**fields):
  params = _with_attention('TransformerLayer', source_dim=D, **fields)
  for name in ('tr_atten_tpl', 'tr_aux_atten_tpl'):
    if params.Get(name) is not None:
      params.Get(name).num_attention_heads = 2
      params.Get(name).atten_tpl.Set(
        enable_ctx_pre_proj=True, enable_ctx_post_proj=True
      )
  params.tr_fflayer_tpl.hidden_dim = 16
  return params


def _inputs():
  rng = np.random.default_rng(1)
  return [
    rng.normal(size=shape).astype(np.float32)
    for shape in ([B, T, D], [B, S, D])
  ]


def _fprop(*, crosses=False, packed=False):
  """Returns Lingvo's computation, from [B, T, D]."""
  tf = lingvo_runtime.module('tensorflow')

  def time_major(x):
    return tf.transpose(tf.constant(x, tf.float32))

  def wrapped(layer, theta, x, aux):
    arguments = [tf.transpose(x, [1, 0, 2]), time_major(PADDINGS)]
    named = {}
    if crosses:
      named['aux_vecs'] = tf.transpose(aux, [1, 0, 2])
      named['aux_paddings'] = time_major(AUX_PADDINGS)
    if packed:
      own = 'source' if hasattr(layer.params, 'tr_atten_tpl') else 'query'
      named[f'{own}_segment_id'] = time_major(IDS)
      if crosses:
        named['aux_segment_id'] = time_major(AUX_IDS)
    return tf.transpose(layer.FProp(theta, *arguments, **named)[0], [1, 0, 2])

  return wrapped


def _call(*, crosses=False, packed=False):
  """Returns our computation of the same."""
  segments, aux_segments = None, None
  if packed:
    segments = segment_mask(jnp.asarray(IDS))
    aux_segments = segment_mask(jnp.asarray(IDS), jnp.asarray(AUX_IDS))

  def wrapped(layer, x, aux):
    cross = {}
    if crosses:
      hidden = padding_mask(jnp.asarray(AUX_PADDINGS))
      cross['cross_inputs'] = aux
      cross['cross_attention_mask'] = combine_masks(hidden, aux_segments)
    return layer(
      x,
      PADDINGS,
      combine_masks(padding_mask(jnp.asarray(PADDINGS)), segments),
      **cross,
    )[0]

  return wrapped


def _check(params, *, do_eval=True, **kind):
  check_layer(
    params,
    _inputs(),
    fprop=_fprop(**kind),
    call=_call(**kind),
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  ('fields', 'packed'),
  [
    ({'is_masked': True, 'mask_type': 'eye'}, False),
    (
      {'is_masked': True, 'mask_type': 'ngram', 'mask_ngram_order': 3},
      False,
    ),
    (
      {'is_masked': True, 'mask_type': 'ngram', 'mask_ngram_order': 2},
      True,
    ),
    ({'is_masked': True}, True),
    ({'mask_type': 'eye'}, True),
  ],
)
def test_what_attention_sees(fields, packed):
  _check(_attention(packed_input=packed, **fields), packed=packed)


@pytest.mark.parametrize(
  'fields',
  [
    {'use_source_vec_as_attention_value': True},
    {'enable_ctx_pre_proj': False, 'enable_ctx_post_proj': False},
  ],
)
def test_attention_that_projects_less(fields):
  params = _attention(is_masked=True)
  params.atten_tpl.Set(**fields)
  _check(params)


@pytest.mark.parametrize('masked', [True, False])
def test_packed_layers(masked):
  _check(
    _layer(mask_self_atten=masked, packed_input=True),
    packed=True,
    do_eval=masked,
  )


@pytest.mark.parametrize(
  ('fields', 'packed'),
  [
    ({'has_aux_atten': True}, False),
    ({'is_decoder': True}, False),
    ({'has_aux_atten': True, 'mask_self_atten': True}, True),
  ],
)
def test_attention_to_another_sequence(fields, packed):
  _check(
    _layer(packed_input=packed, **fields),
    crosses=True,
    packed=packed,
    do_eval=packed,
  )


@pytest.mark.parametrize(
  'fields', [{'pre_layer_norm': False}, {'add_unnormalized_input': True}]
)
def test_both_attentions_of_a_template(fields):
  aux = _attention(**fields)
  aux.atten_tpl.enable_per_dim_scale = False
  params = _layer(has_aux_atten=True, tr_aux_atten_tpl=aux)
  params.tr_atten_tpl.Set(**fields)
  _check(params, crosses=True)
  # What both have in common must be the same.
  params.tr_atten_tpl.Set(**{name: not value for name, value in fields.items()})
  found = issues_of(params)
  assert found and all('layer.tr_aux_atten_tpl' in line for line in found)


def _feed_forward(**fields):
  return _with_attention(
    'TransformerFeedForwardLayer', input_dim=D, hidden_dim=16, **fields
  )


def _check_feed_forward(params, do_eval=True):
  tf = lingvo_runtime.module('tensorflow')
  paddings = tf.constant(PADDINGS)
  check_layer(
    params,
    _inputs()[:1],
    # Batch first, as batch-major layers call it.
    fprop=lambda layer, theta, x: layer.FProp(theta, x, paddings),
    call=lambda layer, x: layer(x, PADDINGS),
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  'fields',
  [
    {'add_skip_connection': False},
    {'add_skip_connection': False, 'output_dim': 5},
    {
      'add_skip_connection': False,
      'output_dim': 5,
      'pre_layer_norm': False,
    },
    {'primer_hybrid_norm': True},
    {'residual_droppath_prob': 0.3, 'residual_weight': 0.5},
  ],
)
def test_feed_forward(fields):
  _check_feed_forward(_feed_forward(**fields))


def test_dropped_residuals_are_those_of_examples():
  params = _feed_forward(residual_droppath_prob=0.25)
  assert translate(params).config.residual_droppath_prob == 0.25
  params = _layer()
  params.tr_fflayer_tpl.residual_droppath_prob = 0.25
  (found,) = issues_of(params)
  assert 'layer.tr_fflayer_tpl.residual_droppath_prob' in found


@pytest.mark.parametrize(
  ('fields', 'issue'),
  [
    ({'output_dim': 5}, 'output_dim'),
    ({'num_tasks': 2}, 'num_tasks'),
    ({'memory_augmentation': True}, 'memory_augmentation'),
    (
      {'use_block_diagonal_matmul_pl': [True, False]},
      'use_block_diagonal_matmul_pl',
    ),
    (
      {'primer_hybrid_norm': True, 'pre_layer_norm': False},
      'primer_hybrid_norm',
    ),
  ],
)
def test_feed_forward_that_is_refused(fields, issue):
  (found,) = issues_of(_feed_forward(**fields))
  assert f'layer.{issue}' in found


@pytest.mark.parametrize(
  ('path', 'value', 'issue'),
  [
    ('tr_atten_tpl.mask_type', 'past', 'tr_atten_tpl.mask_type'),
    ('tr_atten_tpl.context_dim', 5, 'tr_atten_tpl.context_dim'),
    ('tr_atten_tpl.memory_augmentation', True, 'memory_augmentation'),
    ('num_aux_atten_post_proj', 3, 'num_aux_atten_post_proj'),
    ('tr_atten_tpl.is_masked', True, 'is_masked'),
    ('output_dim', 5, 'output_dim'),
  ],
)
def test_layers_that_are_refused(path, value, issue):
  params = _layer(has_aux_atten=True, mask_self_atten=True)
  params.tr_aux_atten_tpl = params.tr_atten_tpl.Copy()
  if path == 'tr_atten_tpl.is_masked':
    path = 'tr_aux_atten_tpl.is_masked'
  params.Set(**{path: value})
  (found,) = issues_of(params)
  assert issue in found


def test_gates_of_residuals_are_refused():
  layers = lingvo_runtime.module('lingvo.core.layers')
  params = _attention(residual_function=layers.HighwaySkipLayer.Params())
  (found,) = issues_of(params)
  assert 'layer.residual_function' in found


@pytest.mark.parametrize(
  'cls',
  [
    'StyleLayer',
    'EvolvedTransformerEncoderLayer',
    'EvolvedTransformerDecoderLayer',
    'CCTAttentionLayer',
    'CCTFeedForwardLayer',
    'TransformerMultiSourceAttentionLayer',
    'TransformerLayerWithMultitaskAdapters',
    'TransformerWithContextLayer',
    'SelfAttentiveLayer',
  ],
)
def test_other_classes_are_refused_by_name(cls):
  (found,) = issues_of(_with_attention(cls))
  assert f'lingvo.core.layers_with_attention.{cls}' in found


def test_a_part_of_another_kind_is_refused():
  params = _layer()
  params.tr_fflayer_tpl = _with_attention('MoEFeedforwardLayer')
  found = '\n'.join(issues_of(params))
  assert 'layer.tr_fflayer_tpl' in found and 'MoEFeedforwardLayer' in found
