"""The computation of attention against numpy, against jax.nn, and its memory.

Shapes: B batch, T target time, S source time, N heads, K heads of keys and
values, H dims of a head.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pax_compat.layers.attentions import attention_masks, attention_ops
from pax_compat.layers.attentions.attention_ops import AttentionInputs
from tests.pax_compat.layers import naive_attention
from tests.pax_compat.layers.naive_attention import random

B, T, S, N, H = 2, 5, 7, 4, 6


def _heads(targets=T, sources=S, kv_heads=N, batch=B, dims=H):
  query = random(batch, targets, N, dims, seed=1)
  key, value = (
    random(batch, sources, kv_heads, dims, seed=seed) for seed in (2, 3)
  )
  return query, key, value


def _attend(query, key, value, *, mask=None, bias=None, causal=False, **fields):
  return attention_ops.attend(
    AttentionInputs(query, key, value, mask, bias, causal),
    attention_ops.AttentionOptions(**fields),
  )


def _mask(kind, targets, sources):
  """Returns a mask in which every target sees the first source."""
  shapes = {
    'none': None,
    'sources': (B, 1, 1, sources),
    'pairs': (B, 1, targets, sources),
    'heads': (1, N, targets, sources),
  }
  if shapes[kind] is None:
    return None
  mask = random(*shapes[kind], seed=4) > 0
  mask[..., 0] = True
  return mask


@pytest.mark.parametrize('kv_heads', [1, 2, N])
@pytest.mark.parametrize(
  ('mask', 'fields'),
  [
    ('none', {}),
    ('none', {'causal': True}),
    ('sources', {'causal': True}),
    ('heads', {'causal': True}),
    ('pairs', {'logit_cap': 1.5}),
    ('sources', {'extra_logit': 0.7}),
    ('heads', {'bias': (1, N, T, S)}),
    ('none', {'bias': (B, 1, 1, S)}),
    (
      'pairs',
      {
        'causal': True,
        'logit_cap': 1.5,
        'extra_logit': 9,
        'bias': (B, N, T, S),
      },
    ),
  ],
)
def test_against_numpy(fields, mask, kv_heads):
  query, key, value = _heads(kv_heads=kv_heads)
  fields = dict(fields)
  bias = fields.pop('bias', None)
  if bias is not None:
    bias = random(*bias, seed=5)
  mask = _mask(mask, T, S)
  got = _attend(query, key, value, mask=mask, bias=bias, **fields)
  visible = naive_attention.visible_of(
    mask, fields.get('causal', False), (B, N, T, S)
  )
  want = naive_attention.attend(
    query,
    key,
    value,
    visible,
    bias=bias,
    cap=fields.get('logit_cap', 0.0),
    extra=fields.get('extra_logit'),
  )
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_logits_may_be_capped_before_the_bias():
  query, key, value = _heads()
  bias = random(B, N, T, S, seed=5)
  got = _attend(
    query, key, value, bias=bias, logit_cap=0.8, cap_before_bias=True
  )
  logits = np.einsum('btnh,bsnh->bnts', query, key)
  weights = special.softmax(0.8 * np.tanh(logits / 0.8) + bias, axis=-1)
  want = np.einsum('bnts,bsnh->btnh', weights, value)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


LONG = 150  # positions, more than one block of targets
BLOCKS = 128  # positions, two whole blocks


@pytest.mark.parametrize(
  ('causal', 'targets', 'sources'),
  [
    (True, LONG, LONG),
    (True, LONG, LONG - 70),
    (True, LONG, LONG + 70),
    (False, LONG, LONG - 70),
    (False, BLOCKS, BLOCKS),
    (False, BLOCKS, 40),
  ],
)
@pytest.mark.parametrize('masked', ['none', 'sources', 'pairs'])
def test_blocks_and_their_gradients(masked, causal, targets, sources):
  """Against one softmax over all sources."""
  heads = _heads(targets, sources, kv_heads=2)
  mask = _mask(masked, targets, sources)
  bias = random(1, N, targets, sources, seed=5)

  def value_and_grads(attend):
    return jax.jit(
      jax.value_and_grad(
        lambda *args: jnp.sum(attend(*args[:3], bias=args[3], mask=mask) ** 2),
        argnums=(0, 1, 2, 3),
      )
    )(*heads, bias)

  got = value_and_grads(functools.partial(_attend, causal=causal))
  want = value_and_grads(
    functools.partial(jax.nn.dot_product_attention, is_causal=causal, scale=1.0)
  )
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4),
    *(got, want),
  )


@pytest.mark.parametrize('kv_heads', [1, N])
def test_gradients_of_what_only_plain_products_do(kv_heads):
  """Against attention that is written as its formula."""
  heads = _heads(kv_heads=kv_heads)
  bias = random(1, N, T, S, seed=5)
  fields = dict(logit_cap=1.5, extra_logit=0.7)

  def plain(query, key, value, bias):
    key, value = (jnp.repeat(x, N // kv_heads, axis=2) for x in (key, value))
    logits = jnp.einsum('btnh,bsnh->bnts', query, key) + bias
    logits = 1.5 * jnp.tanh(logits / 1.5)
    past = attention_masks.causal_mask(T, S)
    weights = jnp.where(past, jnp.exp(logits), 0)
    weights /= jnp.sum(weights, axis=-1, keepdims=True) + jnp.exp(0.7)
    return jnp.einsum('bnts,bsnh->btnh', weights, value)

  def ours(query, key, value, bias):
    return _attend(query, key, value, bias=bias, causal=True, **fields)

  def grads(attend):
    return jax.jit(
      jax.grad(lambda *args: jnp.sum(attend(*args) ** 2), argnums=(0, 1, 2, 3))
    )(*heads, bias)

  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5),
    *(grads(ours), grads(plain)),
  )


def test_logits_of_bfloat16_are_float32():
  # Two logits that are the same number in bfloat16, whose neighbours are 1/2
  # apart there, and values that show how much weight each got.
  query = jnp.full((1, 1, 1, 2), 1, jnp.bfloat16)
  key = jnp.array([[100, 0], [100, 0.25]], jnp.bfloat16)[None, :, None]
  value = jnp.array([[0, 0], [1, 1]], jnp.bfloat16)[None, :, None]
  got = _attend(query, key, value)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(got, 1 / (1 + np.exp(-0.25)), rtol=4e-3)


@pytest.mark.parametrize('causal', [False, True])
def test_bfloat16_and_its_gradients(causal):
  heads = [x.astype(jnp.bfloat16) for x in _heads(BLOCKS, BLOCKS)]

  def value_and_grads(*heads):
    def total(*heads):
      y = _attend(*heads, causal=causal)
      return jnp.sum(y.astype(jnp.float32) ** 2)

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(*heads)

  got = value_and_grads(*heads)
  want = value_and_grads(*(x.astype(jnp.float32) for x in heads))
  assert all(grad.dtype == jnp.bfloat16 for grad in got[1])

  def assert_near(got, want):
    error = np.linalg.norm(np.asarray(got, np.float32) - want)
    assert error < 0.02 * np.linalg.norm(want)

  jax.tree.map(assert_near, got, want)


@pytest.mark.parametrize('extra_logit', [None, 0.0])
@pytest.mark.parametrize('causal', [False, True])
def test_targets_that_see_nothing_are_finite_with_their_gradients(
  causal, extra_logit
):
  heads = _heads(sources=T)
  mask = np.zeros([B, 1, 1, T], bool)

  def loss(*heads):
    y = _attend(*heads, mask=mask, causal=causal, extra_logit=extra_logit)
    return jnp.sum(y**2), y

  (_, y), grads = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(
    *heads
  )
  assert all(np.isfinite(x).all() for x in (y, *grads))
  if extra_logit is not None:
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('sources', [3, T, 8])
def test_which_targets_have_a_visible_source(causal, sources):
  mask = random(B, 1, T, sources, seed=4) > 1.0
  got = attention_ops.has_visible_source(mask, targets=T, causal=causal)
  visible = naive_attention.visible_of(mask, causal, (B, 1, T, sources))
  np.testing.assert_array_equal(got, visible.any(axis=-1))
  assert not got.all() and got.any()


def _step(attend):
  return jax.jit(
    jax.grad(
      lambda *heads: jnp.sum(attend(*heads) ** 2),
      argnums=(0, 1, 2),
    )
  )


def _temporary_bytes(attend, heads) -> int:
  compiled = _step(attend).lower(*heads).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def _formula(query, key, value, causal):
  """Attention as it is written."""
  key, value = (jnp.repeat(x, N // x.shape[2], axis=2) for x in (key, value))
  logits = jnp.einsum('btnh,bsnh->bnts', query, key)
  if causal:
    past = attention_masks.causal_mask(*logits.shape[2:])
    logits = jnp.where(past, logits, -1e30)
  return jnp.einsum('bnts,bsnh->btnh', jax.nn.softmax(logits), value)


@pytest.mark.parametrize('kv_heads', [1, N])
@pytest.mark.parametrize(('causal', 'arrays'), [(True, 1.5), (False, 0.5)])
def test_how_many_arrays_of_weights_a_step_holds(causal, arrays, kv_heads):
  batch, length, dims = 1, 1024, 16
  heads = [
    jax.ShapeDtypeStruct((batch, length, n, dims), jnp.float32)
    for n in (N, kv_heads, kv_heads)
  ]

  def held(attend):
    of_one = batch * N * length * length * 4
    return _temporary_bytes(attend, heads) / of_one

  assert held(functools.partial(_attend, causal=causal)) < arrays
  # Else this shows little.
  assert held(functools.partial(_formula, causal=causal)) > 3
