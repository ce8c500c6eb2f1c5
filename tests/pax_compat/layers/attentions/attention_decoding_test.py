"""Attention step by step against the whole sequence at once.

Shapes: B batch, T time, S source time, L steps at once, D model dims, N heads,
H dims of a head.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS
from pax_compat.layers.attentions import (
  attention_decoding,
  dot_product,
  grouped_query_attention,
  multi_query_attention,
  relative_bias,
)
from pax_compat.layers.attentions.attention_masks import (
  CAUSAL,
  AttentionMask,
)
from pax_compat.layers.normalizations import norm_layers
from tests.pax_compat.layers import naive_attention
from tests.pax_compat.layers.naive_attention import random

B, T, D, N, H = 2, 7, 6, 4, 2

MULTI_HEAD = dot_product.DotProductAttention
MULTI_QUERY = multi_query_attention.MultiQueryDotProductAttention
GROUPED = grouped_query_attention.GroupedQueryAttention

# Fewer buckets than distances, so that positions matter.
BIAS = relative_bias.RelativeBias.config(
  relative_attention_num_buckets=6, relative_attention_max_distance=5
)
BIAS_BY_POSITION = BIAS.clone().set(use_length_as_position=False)

VARIANTS = {
  'multi-head': (MULTI_HEAD, {}),
  'combined': (MULTI_HEAD, {'combine_qkv': True}),
  'capped': (MULTI_HEAD, {'atten_logit_cap': 2.0}),
  'extra logit': (MULTI_HEAD, {'attention_extra_logit': 0.5}),
  'rotary': (MULTI_HEAD, {'use_rotary_position_emb': True}),
  'normalised': (
    MULTI_HEAD,
    {
      'use_rotary_position_emb': True,
      'cast_rotary_position_emb': False,
      'ln_tpl': norm_layers.RmsNorm.config(),
    },
  ),
  'relative bias': (MULTI_HEAD, {'relative_bias_tpl': BIAS}),
  'relative bias by position': (
    MULTI_HEAD,
    {'relative_bias_tpl': BIAS_BY_POSITION},
  ),
  'convolved': (
    MULTI_HEAD,
    {'dconv_qkv': True, 'use_rotary_position_emb': True},
  ),
  'convolved with one position': (
    MULTI_HEAD,
    {'dconv_qkv': True, 'dconv_kernel_size': 1},
  ),
  'multi-query': (MULTI_QUERY, {'use_rotary_position_emb': True}),
  'multi-query with two': (
    MULTI_QUERY,
    {'num_kv_heads': 2, 'relative_bias_tpl': BIAS, 'dconv_qkv': True},
  ),
  'grouped': (
    GROUPED,
    {'num_kv_heads': 2, 'rope_min_max_timescales': (1, 100)},
  ),
}
variants = pytest.mark.parametrize(
  ('cls', 'fields'), VARIANTS.values(), ids=VARIANTS
)


def _config(cls, fields):
  return cls.config(input_dim=D, hidden_dim=N * H, num_heads=N, **fields)


class _Decoder:
  """An attention layer and what it keeps between steps."""

  def __init__(self, config, weights, length=T, batch=B):
    self.layer, self.weights = config.Instantiate(), weights
    self.cache = self.run('init_states', {}, batch, length)[1]
    self._step = jax.jit(
      lambda cache, x, **kwargs: self.run('extend_step', cache, x, **kwargs)
    )

  def run(self, method, cache, *args, **kwargs):
    """Returns what a method returns, and what is kept then."""
    result, changed = self.layer.apply(
      {PARAMS: self.weights, DECODE_CACHE: cache},
      *args,
      **kwargs,
      method=method,
      mutable=[DECODE_CACHE],
    )
    return result, changed[DECODE_CACHE]

  def step(self, x, time_step, **kwargs):
    """Returns what a step gives."""
    y, self.cache = self._step(
      self.cache, x, time_step=jnp.asarray(time_step), **kwargs
    )
    return y

  def steps(self, x, lengths, mask=None, positions=None):
    """Returns what steps of the given lengths give, one after another."""
    results, start = [], 0
    for length in lengths:
      part = slice(start, start + length)
      at = None if positions is None else positions[:, part]
      results.append(
        self.step(x[:, part], start, atten_mask=mask, segment_pos=at)
      )
      start += length
    assert start == x.shape[1]
    return jnp.concatenate(results, axis=1)


LENGTHS = pytest.mark.parametrize('lengths', [[1] * T, [4, 1, 1, 1], [3, 2, 2]])


@functools.cache
def _whole(variant):
  """Returns a config, weights, what is attended to and what that gives."""
  config = _config(*VARIANTS[variant])
  weights = naive_attention.weights_of(config, D)
  x = random(B, T, D, seed=30)
  whole = jax.jit(
    lambda x: config.Instantiate().apply(
      {PARAMS: weights}, x, x, x, atten_mask=CAUSAL
    )[0]
  )(x)
  return config, weights, x, np.asarray(whole)


@LENGTHS
@pytest.mark.parametrize('variant', VARIANTS)
def test_steps_give_what_the_whole_gives(variant, lengths):
  config, weights, x, whole = _whole(variant)
  got = _Decoder(config, weights, length=T + 2).steps(x, lengths)
  np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-5)


@variants
def test_padding_in_front_changes_nothing(cls, fields):
  config = _config(cls, fields)
  weights = naive_attention.weights_of(config, D)
  x = np.array(random(B, T, D, seed=30))
  padding = np.array([0, 3])
  index = np.arange(T)[None]
  mask = (index >= padding[:, None])[:, None, None]
  positions = np.maximum(index - padding[:, None], 0)
  got = _Decoder(config, weights).steps(
    x, [4, 1, 2], AttentionMask(mask, causal=True), positions
  )
  layer = config.Instantiate()
  for row, start in enumerate(padding):
    alone = jnp.asarray(x[row : row + 1, start:])
    want = jax.jit(
      lambda x: layer.apply({PARAMS: weights}, x, x, x, atten_mask=CAUSAL)[0]
    )(alone)
    np.testing.assert_allclose(got[row, start:], want[0], rtol=1e-5, atol=1e-5)


def test_positions_of_a_prefix_may_see_each_other():
  config = _config(MULTI_HEAD, {})
  weights = naive_attention.weights_of(config, D)
  x = random(B, T, D, seed=30)
  decoder = _Decoder(config, weights)
  layer = config.Instantiate()
  got = layer.apply(
    {PARAMS: weights, DECODE_CACHE: decoder.cache},
    x[:, :4],
    time_step=0,
    method='extend_step',
    mutable=[DECODE_CACHE],
    atten_mask=AttentionMask(causal=False),
  )[0]
  prefix = x[:, :4]
  want = naive_attention.layer(weights, prefix, prefix, prefix)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=5e-5)


def test_a_step_may_be_taken_again():
  config = _config(MULTI_HEAD, {'use_rotary_position_emb': True})
  weights = naive_attention.weights_of(config, D)
  decoder = _Decoder(config, weights)
  x = random(B, T, D, seed=30)
  first = decoder.steps(x[:, :5], [3, 1, 1])
  decoder.step(random(B, 1, D, seed=31), 4)
  np.testing.assert_array_equal(decoder.step(x[:, 4:5], 4), first[:, 4:])


def test_what_is_kept_has_the_shape_and_dtype_of_the_heads():
  config = _config(MULTI_QUERY, {'num_kv_heads': 2})
  config.set(fprop_dtype=jnp.bfloat16, use_rotary_position_emb=True)
  weights = naive_attention.weights_of(config, D)
  for cast, dtype in ((True, jnp.bfloat16), (False, jnp.float32)):
    config.cast_rotary_position_emb = cast
    decoder = _Decoder(config, weights)
    kept = {name: (x.shape, x.dtype) for name, x in decoder.cache.items()}
    assert kept == {
      'key_state': ((B, T, 2, H), dtype),
      'value_state': ((B, T, 2, H), jnp.bfloat16),
    }


def test_bfloat16():
  config = _config(MULTI_HEAD, {'use_rotary_position_emb': True})
  config.fprop_dtype = jnp.bfloat16
  weights = naive_attention.weights_of(config, D)
  x = jnp.bfloat16(random(B, T, D, seed=30))
  whole = config.Instantiate().apply(
    {PARAMS: weights}, x, x, x, atten_mask=CAUSAL
  )[0]
  got = _Decoder(config, weights).steps(x, [4, 1, 1, 1])
  assert got.dtype == jnp.bfloat16
  got, whole = (np.asarray(y, np.float32) for y in (got, whole))
  assert np.linalg.norm(got - whole) < 0.02 * np.linalg.norm(whole)


def _cross(layer, weights, source, kwargs, steps):
  """Returns what steps of cross attention give, and the keys that are kept."""
  _, state = layer.apply(
    {PARAMS: weights},
    *source,
    method='init_cross_states',
    mutable=[DECODE_CACHE],
  )
  results = []
  for query, positions in steps:
    results.append(
      layer.apply(
        {PARAMS: weights, **state},
        query,
        segment_pos=positions,
        method='cross_step',
        **kwargs,
      )
    )
  return jnp.concatenate(results, axis=1)


@pytest.mark.parametrize(
  'name',
  [
    *('multi-head', 'rotary', 'relative bias', 'multi-query', 'grouped'),
    'relative bias by position',
  ],
)
@pytest.mark.parametrize('values_apart', [False, True])
def test_cross_attention_step_by_step(name, values_apart):
  cls, fields = VARIANTS[name]
  config = _config(cls, fields)
  weights, layer = naive_attention.weights_of(config, D), config.Instantiate()
  query = random(B, 4, D, seed=30)
  source = [random(B, 5, D, seed=31 + i) for i in range(1 + values_apart)]
  mask = np.ones((B, 1, 1, 5), bool)
  mask[1, :, :, 3:] = False
  steps = [
    (query[:, a:b], jnp.arange(a, b)[None]) for a, b in ((0, 2), (2, 3), (3, 4))
  ]
  got = _cross(layer, weights, source, {'atten_mask': mask}, steps)
  want = layer.apply(
    {PARAMS: weights}, query, source[0], source[-1], atten_mask=mask
  )[0]
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_convolved_cross_attention_step_by_step():
  config = _config(MULTI_HEAD, {'dconv_qkv': True, 'dconv_kernel_size': 3})
  weights, layer = naive_attention.weights_of(config, D), config.Instantiate()
  query, source = random(B, 4, D, seed=30), random(B, 5, D, seed=31)
  want = layer.apply({PARAMS: weights}, query, source, source)[0]
  _, state = layer.apply(
    {PARAMS: weights},
    source,
    method='init_cross_states',
    mutable=[DECODE_CACHE],
  )
  for first, last in ((0, 2), (2, 3), (3, 4)):
    got, state = layer.apply(
      {PARAMS: weights, **state},
      query[:, first:last],
      time_step=first,
      is_cross_attention=True,
      method='extend_step',
      mutable=[DECODE_CACHE],
    )
    np.testing.assert_allclose(got, want[:, first:last], rtol=1e-5, atol=1e-5)


def test_cross_attention_that_depends_on_positions_wants_them():
  config = _config(*VARIANTS['rotary'])
  layer, weights = config.Instantiate(), naive_attention.weights_of(config, D)
  x = random(B, 2, D)
  with pytest.raises(errors.UserError, match='expected segment_pos'):
    _cross(layer, weights, [x], {}, [(x, None)])


def test_what_has_no_cross_attention():
  config = _config(MULTI_HEAD, {'combine_qkv': True})
  layer, weights = config.Instantiate(), naive_attention.weights_of(config, D)
  x = random(B, 2, D)
  with pytest.raises(
    errors.UserError, match='combine_qkv is for self attention'
  ):
    _cross(layer, weights, [x], {}, [])


def test_room_is_made_before_decoding():
  config = _config(MULTI_HEAD, {})
  weights = naive_attention.weights_of(config, D)
  layer, x = config.Instantiate(), random(B, T, D)
  with pytest.raises(errors.UserError, match='init_states'):
    layer.apply({PARAMS: weights}, x, time_step=0, method='extend_step')
  with pytest.raises(errors.UserError, match='allocated 6 positions of 2'):
    _Decoder(config, weights, length=T - 1).step(x, 0)
  with pytest.raises(errors.UserError, match='allocated 7 positions of 3'):
    _Decoder(config, weights, batch=3).step(x, 0)


def test_time_is_not_split_while_decoding():
  mesh = naive_attention.abstract_mesh(x=2, y=2)
  config = _config(MULTI_HEAD, {})
  config.activation_split_dims_mapping.set(
    blnh=[None, 'x', 'y', None], bld=[None, 'x', None]
  )
  weights = naive_attention.weights_of(config, D)
  decoder = _Decoder(config, weights)
  specs = naive_attention.splits(
    lambda x: decoder.run('extend_step', decoder.cache, x, time_step=0),
    mesh,
    jnp.zeros((B, 1, D)),
  )
  assert dict(specs) == {
    (B, 1, N, H): (None, None, 'y', None),
    (B, T, N, H): (None, 'x', 'y', None),
    (B, 1, D): (None, None, None),
  }


def _called(config, weights, *inputs, **kwargs):
  """Returns the cache that `__call__` leaves."""
  return config.Instantiate().apply(
    {PARAMS: weights}, *inputs, mutable=[DECODE_CACHE], **kwargs
  )[1]


@pytest.mark.parametrize(
  'variant', ['relative bias by position', 'convolved', 'grouped']
)
def test_a_call_fills_the_cache(variant):
  config, weights, x, whole = _whole(variant)
  decoder = _Decoder(config, weights)
  cache = _called(config, weights, x, x, x, atten_mask=CAUSAL)[DECODE_CACHE]
  # What the call saw of later positions is not used.
  decoder.cache = jax.tree.map(lambda a: a.at[:, 3:].set(7), cache)
  got = [decoder.step(x[:, t], t) for t in range(3, T)]
  np.testing.assert_allclose(
    np.stack(got, axis=1), whole[:, 3:], rtol=1e-5, atol=1e-5
  )


def test_a_call_fills_the_cache_of_a_source():
  config = _config(MULTI_HEAD, {'use_rotary_position_emb': True})
  weights = naive_attention.weights_of(config, D)
  x, source = random(B, T, D, seed=30), random(B, 3, D, seed=31)
  state = _called(config, weights, x, source, source)
  layer = config.Instantiate()
  got = layer.apply(
    {PARAMS: weights, **state},
    x[:, 2],
    time_step=2,
    segment_pos=jnp.full([B], 2),
    is_cross_attention=True,
    method='extend_step',
  )
  whole = layer.apply({PARAMS: weights}, x, source, source)[0]
  np.testing.assert_allclose(got, whole[:, 2], rtol=1e-5, atol=1e-5)


def test_an_encoder_keeps_nothing():
  config = _config(MULTI_HEAD, {})
  weights = naive_attention.weights_of(config, D)
  x = random(B, T, D, seed=30)
  with attention_decoding.without_cache():
    assert not _called(config, weights, x, x, x)
