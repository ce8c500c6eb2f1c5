"""Attention with one head of keys against GShard's own, run for real.

GShard ignores its builder's `atten_logit_cap` there.

Shapes: B batch, T time, D model dims, N heads, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.base_layer import DECODE_CACHE, PARAMS
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  AttentionMask,
)
from pax_compat.layers.attentions.attention_projections import (
  AttentionProjection,
)
from pax_compat.layers.attentions.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.attentions.relative_bias import RelativeBias
from tests.adaptors.translate import lingvo_layer_runs
from tests.adaptors.translate.parity import OUTPUT_TOLERANCE, assert_close
from tests.adaptors.translate.same_weights import by_rules, check

B, T, D, N, H = 3, 6, 8, 4, 3
# Fewer than distances, so that some share one.
_BUCKETS = dict(
  relative_attention_num_buckets=4, relative_attention_max_distance=5
)
X = np.random.default_rng(1).normal(size=(B, T, D)).astype(np.float32)
# Packed examples; 0 is padding.
SEGMENT_IDS = np.array(
  [[1, 1, 2, 2, 2, 3], [1, 2, 2, 2, 0, 0], [1] * 6], np.int32
)
SEGMENT_POS = np.array(
  [[0, 1, 0, 1, 2, 0], [0, 0, 1, 2, 0, 0], range(6)], np.int32
)
# What comes of padding matters to nobody.
_TOKENS = (SEGMENT_IDS != 0)[..., None].astype(np.float32)


def _builder(**fields):
  builder = lingvo_runtime.module('lingvo.core.gshard_builder').DenseBuilder
  fields = {
    'relative_attention_type': 'bias',
    'relative_attention_use_universal_1d_position': True,
    'attention_combine_dims': True,
    **fields,
  }
  return builder.Params().Set(
    model_dim=D,
    attention_num_heads=N,
    attention_num_memory_heads=1,
    attention_key_value_dim=H,
    **_BUCKETS,
    **fields,
  )


def _config(*, relative=True, bidirectional=True, by_index=True, **fields):
  """Returns the config of the same layer here."""
  combined = fields.pop('attention_combine_dims', True)
  bias = RelativeBias.config(
    bidirectional=bidirectional, use_length_as_position=by_index, **_BUCKETS
  )
  return MultiQueryDotProductAttention.config(
    input_dim=D,
    hidden_dim=N * H,
    num_heads=N,
    dim_per_head=H,
    use_bias=False,
    internal_enable_query_scale=False,
    internal_gshard_gaussian_init=True,
    output_proj_use_nhd_shape=True,
    proj_tpl=AttentionProjection.config(attention_combine_dims=combined),
    relative_bias_tpl=bias if relative else None,
    **fields,
  )


_RULES = by_rules(
  (r'^w\.wq', 'query.w'),
  (r'^w\.wk', 'key.w'),
  (r'^w\.wv', 'value.w'),
  (r'^w\.wo', 'post.w'),
  (r'^wrb\.', 'relative_bias.'),
)


def _segments():
  """Returns the segments' ids and positions, tensors."""
  tf = lingvo_runtime.module('tensorflow')
  return tf.constant(SEGMENT_IDS), tf.constant(SEGMENT_POS)


def _rename(weights):
  renamed = _RULES(weights)
  for name in ('key/w', 'value/w'):
    renamed[name] = renamed[name].reshape(D, H)
  return renamed


@pytest.mark.parametrize(
  ('theirs', 'ours'),
  [
    ({}, {}),
    ({'atten_logit_cap': 0.5}, {}),
    (
      {'attention_extra_logit': 0.7, 'model_dim_reshape_segments': 2},
      {'attention_extra_logit': 0.7},
    ),
    ({'attention_combine_dims': False}, {'attention_combine_dims': False}),
    (
      {'relative_attention_use_universal_1d_position': False},
      {'by_index': False},
    ),
    ({'relative_attention_type': None}, {'relative': False}),
  ],
  ids=lambda fields: ','.join(fields),
)
def test_an_encoder(theirs, ours):
  params = _builder(**theirs)
  relative = params.relative_attention_type is not None
  builder = params.Instantiate()
  make = builder.SelfAttention
  if relative:
    make = builder.SelfAttentionRelativeBias
  mask = attention_masks.segment_mask(SEGMENT_IDS)

  def fprop(layer, theta, x):
    if params.model_dim_reshape_segments:
      x = builder._ReshapeM(x, 2)
    tf = lingvo_runtime.module('tensorflow')
    y, _ = layer.FProp(theta, x, *_segments())
    return tf.reshape(y, X.shape) * _TOKENS

  def call(layer, x):
    positions = dict(query_segment_pos=SEGMENT_POS, key_segment_pos=SEGMENT_POS)
    return layer(x, x, x, **positions, atten_mask=mask)[0] * _TOKENS

  check(
    _config(**ours),
    make('atten'),
    [X],
    fprop=fprop,
    call=call,
    rename=_rename,
  )


def _decoder_fprop(layer, theta, x):
  # A decoder may see a source, too; this attention does not.
  y, _ = layer.FProp(theta, x, *_segments(), x, *_segments())
  return y * _TOKENS


def _decoder():
  # Decoding token by token, Lingvo needs positions that are given.
  return _builder(relative_attention_use_universal_1d_position=False)


def test_a_decoder():
  mask = attention_masks.segment_mask(SEGMENT_IDS)

  def call(layer, x):
    positions = dict(query_segment_pos=SEGMENT_POS, key_segment_pos=SEGMENT_POS)
    return (
      layer(x, x, x, **positions, atten_mask=AttentionMask(mask, causal=True))[
        0
      ]
      * _TOKENS
    )

  check(
    _config(bidirectional=False, by_index=False),
    _decoder().Instantiate().DecSelfAttentionRelativeBias('atten'),
    [X],
    fprop=_decoder_fprop,
    call=call,
    rename=_rename,
  )


@pytest.mark.parametrize('by_index', [False, True])
def test_a_decoder_token_by_token(by_index):
  """The example that is a row by itself, against Lingvo's in one piece."""
  params = _decoder().Instantiate().DecSelfAttentionRelativeBias('atten')
  rng = np.random.default_rng(2)
  weights = {
    path: rng.normal(scale=0.5, size=value.shape).astype(np.float32)
    for path, value in lingvo_layer_runs.weights_of(params).items()
  }
  (want,) = lingvo_layer_runs.run(
    params, weights, [X], fprop=_decoder_fprop
  ).outputs
  layer = _config(bidirectional=False, by_index=by_index).Instantiate()
  named = {}
  for path, value in _rename(weights).items():
    child, name = path.split('/')
    named[child] = {name: value}

  def run(method, cache, *args, **kwargs):
    y, changed = layer.apply(
      {PARAMS: named, DECODE_CACHE: cache},
      *args,
      **kwargs,
      method=method,
      mutable=[DECODE_CACHE],
    )
    return y, changed[DECODE_CACHE]

  step = jax.jit(lambda cache, x, t: run('extend_step', cache, x, time_step=t))
  _, cache = run('init_states', {}, 1, T)
  found = []
  for t in range(T):
    y, cache = step(cache, jnp.asarray(X[2:, t : t + 1]), t)
    found.append(y)
  assert_close(
    jnp.concatenate(found, axis=1), want[2:], OUTPUT_TOLERANCE, 'output'
  )


def test_how_weights_start():
  """At a size at which deviations are within two percent."""
  dims, heads, head_dims = 96, 8, 32
  config = _config().set(
    input_dim=dims,
    hidden_dim=heads * head_dims,
    dim_per_head=head_dims,
    num_heads=heads,
  )
  config.relative_bias_tpl.relative_attention_num_buckets = 512
  config.relative_bias_tpl.relative_attention_max_distance = 1024
  x = jnp.zeros((1, 2, dims))
  init = jax.jit(
    lambda: config.Instantiate().init_boxed(jax.random.key(0), x, x, x)
  )
  weights = init()[PARAMS]
  for child, name, deviation in (
    ('query', 'w', (dims * head_dims) ** -0.5),
    ('key', 'w', dims**-0.5),
    ('value', 'w', dims**-0.5),
    ('post', 'w', (heads * head_dims) ** -0.5),
    ('relative_bias', 'wrb', (heads * 512) ** -0.5),
  ):
    value = np.asarray(weights[child][name].value)
    # Three and a half standard errors of a deviation.
    error = 3.5 / np.sqrt(2 * value.size)
    np.testing.assert_allclose(value.std(), deviation, rtol=error)
    assert abs(value.mean()) < 4 * deviation / np.sqrt(value.size)
