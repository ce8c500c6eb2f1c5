"""Types of the cache of keys and values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS
from pax_compat.layers.attentions import (
  dot_product,
  grouped_query_attention,
  kv_cache,
)
from tests.pax_compat.decoding import greedy_test

B, S, K, H, LAYERS = 3, 16, 2, 8, 2


def test_numbers_are_half_a_scale_off_at_most():
  x = np.random.default_rng(0).normal(size=(B, S, K, H)).astype(np.float32)
  x *= 10.0 ** np.arange(S)[:, None, None]
  x[0, 0] = 0
  stored, scale = kv_cache.quantize(jnp.asarray(x))
  assert stored.dtype == jnp.int8 and scale.shape == (B, S, K)
  found = kv_cache.dequantize(stored, scale, jnp.float32)
  bound = np.abs(x).max(-1, keepdims=True) / 254
  error = np.abs(found - x)
  assert (error <= bound * (1 + 1e-4)).all()
  assert error.max() > 0
  np.testing.assert_array_equal(found[0, 0], 0)


def _config(dtype, kind='stacked'):
  config = greedy_test.lm_config(kind)
  stack = config.stacked_transformer_tpl
  stack = stack.block if kind == 'repeated' else stack
  stack.transformer_layer_params_tpl.tr_atten_tpl.kv_cache_dtype = dtype
  return config


@pytest.mark.parametrize(
  ('kind', 'dtype'),
  [
    ('stacked', None),
    ('stacked', 'bfloat16'),
    ('stacked', 'int8'),
    ('repeated', 'int8'),
    ('grouped', 'int8'),
  ],
)
def test_the_cache_has_the_size_of_its_formula(kind, dtype):
  config = _config(dtype, 'stacked' if kind == 'grouped' else kind)
  config.model_dims, heads = K * H, K
  if kind == 'grouped':
    config.stacked_transformer_tpl.transformer_layer_params_tpl.tr_atten_tpl = (
      grouped_query_attention.GroupedQueryAttention.config(
        num_kv_heads=1, dim_per_head=H, kv_cache_dtype=dtype
      )
    )
    heads = 1
  layer = config.Instantiate()
  ids = jnp.zeros([1, 2], int)

  def init():
    variables = base_layer.unbox(
      layer.init({PARAMS: jax.random.key(0)}, ids, jnp.zeros([1, 2]))
    )
    return layer.apply(
      {PARAMS: variables[PARAMS]},
      B,
      S,
      method='init_states',
      mutable=[DECODE_CACHE],
    )[1][DECODE_CACHE]

  states = jax.eval_shape(init)
  found = sum(
    x.size * x.dtype.itemsize for x in jax.tree.leaves(states) if x.ndim
  )
  bytes_of_head = {'bfloat16': 2 * H, 'int8': H + 4}.get(dtype, 4 * H)
  assert found == LAYERS * 2 * B * S * heads * bytes_of_head


def _logits(dtype):
  """Returns logits of steps with a cache of this type."""
  layer = _config(dtype).Instantiate()
  params = greedy_test.random_weights(greedy_test.lm_config())
  ids = np.random.default_rng(1).integers(1, greedy_test.V, (B, S))

  def apply(cache, *args, **kwargs):
    with base_layer.eval_mode():
      return layer.apply(
        {PARAMS: params, DECODE_CACHE: cache},
        *args,
        mutable=[DECODE_CACHE],
        **kwargs,
      )

  @jax.jit
  def run(ids):
    _, out = apply({}, B, S, method='init_states')
    cache, logits = out[DECODE_CACHE], []
    for part in (slice(0, S - 2), slice(S - 2, S - 1), slice(S - 1, S)):
      found, out = apply(
        cache, ids[:, part], time_step=part.start, method='extend_step'
      )
      cache = out[DECODE_CACHE]
      logits.append(found.logits)
    return jnp.concatenate(logits, axis=1)

  return np.asarray(run(ids))


@pytest.mark.slow
def test_the_error_of_logits_is_small():
  exact = _logits('float32')
  # Of large random weights; measured are 0.03 and 0.09.
  for dtype, bound in (('bfloat16', 0.06), ('int8', 0.15)):
    error = np.abs(_logits(dtype) - exact)
    assert 0 < error.max() < bound * exact.std()


def test_unknown_types_are_refused():
  attention = dot_product.DotProductAttention.config(
    input_dim=4, hidden_dim=4, num_heads=2
  )
  for dtype, message in (
    ('int4', r"DotProductAttention.kv_cache_dtype is 'int4'; expected None or"),
    ('int', 'did you mean: int8'),
  ):
    attention.kv_cache_dtype = dtype
    x = jnp.zeros([1, 2, 4])
    with pytest.raises(errors.UserError, match=message):
      attention.Instantiate().init({PARAMS: jax.random.key(0)}, x, x, x)
