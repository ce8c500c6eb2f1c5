"""Translated time-major attention against the Lingvo layers it stands for.

Legend: B batch, T target time, S source time, D model dims, N heads.
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
from pax_compat.layers.attentions.dot_product import DotProductAttention
from pax_compat.layers.attentions.flexible_attention import FlexibleAttention
from tests.adaptors.translate.parity import (
  check_layer,
  issues_of,
  translate,
)

B, T, S, D, N = 3, 6, 5, 8, 2
# Each row is full, or of middle or short length.
PADDINGS = (np.arange(S) >= np.array([[S], [4], [1]])).astype(np.float32)
# Packed examples; 0 is padding.
SOURCE_IDS = np.array([[1, 1, 2, 2, 3], [1, 2, 2, 2, 0], [1, 0, 0, 0, 0]])
TARGET_IDS = np.array(
  [[1, 1, 2, 2, 2, 3], [1, 1, 1, 2, 2, 2], [1, 1, 1, 0, 0, 0]]
)

_counter = itertools.count()


def _params(cls, **fields):
  attention = lingvo_runtime.module('lingvo.core.attention')
  params = getattr(attention, cls).Params()
  # Lingvo takes layers of one name for the same.
  return params.Set(name=f'atten_{next(_counter)}', **fields)


def _heads(**fields):
  """Returns Params of `MultiHeadedAttention` that projects everything."""
  return _params(
    'MultiHeadedAttention',
    **{
      'source_dim': D,
      'query_dim': D,
      'context_dim': D,
      'hidden_dim': D,
      'num_attention_heads': N,
      'use_source_vec_as_attention_value': False,
      'enable_ctx_pre_proj': True,
      'enable_ctx_post_proj': True,
      'ctx_post_proj_dim': D,
      **fields,
    },
  )


def _inputs(query=D, source=D, context=D):
  """Returns queries [B, T, ...], sources and contexts [B, S, ...]."""
  rng = np.random.default_rng(1)
  return [
    rng.normal(size=shape).astype(np.float32)
    for shape in ([B, T, query], [B, S, source], [B, S, context])
  ]


def _fprop(*, packed=False, probs=False):
  """Returns Lingvo's computation, all targets in one call."""
  tf = lingvo_runtime.module('tensorflow')

  def segments(ids):
    return tf.constant(ids.T, tf.float32) if packed else None

  def wrapped(layer, theta, query, source, context):
    packed_source = layer.PackSource(
      theta,
      tf.transpose(source, [1, 0, 2]),
      tf.transpose(context, [1, 0, 2]),
      tf.constant(PADDINGS.T),
      segments(SOURCE_IDS),
    )
    # There are this number of batches of targets.
    flat = tf.reshape(tf.transpose(query, [1, 0, 2]), [T * B, -1])
    ids = segments(TARGET_IDS)
    y, weights, _ = layer.ComputeContextVectorWithSource(
      theta,
      packed_source,
      flat,
      query_segment_id=None if ids is None else tf.reshape(ids, [-1]),
    )
    named = {'output': y, 'probs': weights} if probs else {'output': y}
    return {
      name: tf.transpose(tf.reshape(x, [T, B, -1]), [1, 0, 2])
      for name, x in named.items()
    }

  return wrapped


def _mask(packed):
  return combine_masks(
    padding_mask(jnp.asarray(PADDINGS)),
    segment_mask(jnp.asarray(TARGET_IDS), jnp.asarray(SOURCE_IDS))
    if packed
    else None,
  )


def _check(params, inputs=None, *, packed=False, do_eval=True):
  check_layer(
    params,
    inputs or _inputs(),
    fprop=_fprop(packed=packed),
    call=lambda layer, *x: {'output': layer(*x, _mask(packed))[0]},
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  ('fields', 'dims', 'cls'),
  [
    ({}, {}, DotProductAttention),
    ({'hidden_dim': 12, 'use_bias': False}, {}, DotProductAttention),
    ({'proj_init': 'uniform'}, {}, DotProductAttention),
    (
      {'source_dim': 4, 'query_dim': 6, 'context_dim': 10},
      {'source': 4, 'query': 6, 'context': 10},
      FlexibleAttention,
    ),
    ({'ctx_post_proj_dim': 5}, {}, FlexibleAttention),
    ({'enable_ctx_pre_proj': False}, {}, FlexibleAttention),
    (
      {'enable_ctx_post_proj': False, 'ctx_post_proj_dim': 0},
      {},
      FlexibleAttention,
    ),
    ({'enable_source_proj': False}, {}, FlexibleAttention),
    ({'enable_query_proj': False}, {}, FlexibleAttention),
    (
      {'use_source_vec_as_attention_value': True, 'context_dim': 0},
      {},
      FlexibleAttention,
    ),
  ],
)
def test_what_is_projected(fields, dims, cls):
  params = _heads(**fields)
  assert translate(params).config.cls is cls
  _check(params, _inputs(**dims))


@pytest.mark.parametrize('do_eval', [True, False])
def test_packed_examples(do_eval):
  params = _heads(packed_input=True, enable_per_dim_scale=False)
  params.inner_atten_params.atten_logit_cap = 0.5
  _check(params, packed=True, do_eval=do_eval)


@pytest.mark.parametrize('packed', [False, True])
def test_one_head_that_projects_nothing(packed):
  params = _params(
    'DotProductAttention',
    source_dim=D,
    query_dim=D,
    hidden_dim=D,
    packed_input=packed,
    use_dim_scale=not packed,
  )
  _check(params, _inputs(context=D), packed=packed)


@pytest.mark.parametrize('packed', [False, True])
def test_additive_attention(packed):
  params = _params(
    'AdditiveAttention',
    source_dim=4,
    query_dim=6,
    hidden_dim=5,
    packed_input=packed,
  )
  check_layer(
    params,
    _inputs(source=4, query=6, context=7),
    fprop=_fprop(packed=packed, probs=True),
    call=lambda layer, *x: dict(
      zip(('output', 'probs'), layer(*x, mask=_mask(packed)), strict=True)
    ),
    do_eval=packed,
  )


def test_additive_attention_of_one_target_in_each_example():
  params = _params(
    'AdditiveAttention',
    source_dim=D,
    query_dim=D,
    hidden_dim=5,
    same_batch_size=True,
  )
  tf = lingvo_runtime.module('tensorflow')
  query, source, context = _inputs()

  def fprop(layer, theta, query, source, context):
    packed = layer.PackSource(
      theta,
      tf.transpose(source, [1, 0, 2]),
      tf.transpose(context, [1, 0, 2]),
      tf.constant(PADDINGS.T),
    )
    return layer.ComputeContextVectorWithSource(theta, packed, query[:, 0])[0]

  check_layer(
    params,
    [query[:, :1], source, context],
    fprop=fprop,
    call=lambda layer, *x: layer(*x, mask=_mask(packed=False))[0][:, 0],
  )


def test_dropout_reaches_the_config():
  params = _heads(atten_dropout_prob=0.3, atten_dropout_deterministic=True)
  assert translate(params).config.atten_dropout_prob == 0.3
  params = _params('AdditiveAttention', source_dim=4, query_dim=4, hidden_dim=4)
  params.atten_dropout_prob = 0.2
  assert translate(params).config.atten_dropout_prob == 0.2


@pytest.mark.parametrize(
  ('fields', 'issue'),
  [
    ({'num_post_proj': 2}, 'num_post_proj'),
    ({'num_attention_heads': 3}, 'num_attention_heads'),
    ({'proj_init': 'other'}, 'proj_init'),
    (
      {'enable_ctx_pre_proj': False, 'context_dim': 5},
      'context_dim',
    ),
    ({'enable_query_proj': False, 'query_dim': 5}, 'query_dim'),
  ],
)
def test_what_is_not_translated_is_refused(fields, issue):
  (found,) = issues_of(_heads(**fields))
  assert f'layer.{issue}' in found


@pytest.mark.parametrize('inner', ['AdditiveAttention', 'MonotonicAttention'])
def test_heads_of_another_kind_are_refused(inner):
  params = _heads()
  params.inner_atten_params = _params(inner)
  (found,) = issues_of(params)
  assert 'layer.inner_atten_params' in found and inner in found


@pytest.mark.parametrize(
  'cls',
  [
    'LocationSensitiveAttention',
    'MonotonicAttention',
    'GmmMonotonicAttention',
    'MergerLayer',
    'MultiSourceAttention',
  ],
)
def test_other_classes_are_refused_by_name(cls):
  (found,) = issues_of(_params(cls))
  assert f'lingvo.core.attention.{cls}' in found
