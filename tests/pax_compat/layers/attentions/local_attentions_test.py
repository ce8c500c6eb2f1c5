"""Attention to a window against numpy, and step by step.

Shapes: B batch, T time, D model dims, N heads, R dims of the distances'
embeddings.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_masks import (
  CAUSAL,
)
from pax_compat.layers.attentions.local_attentions import (
  LocalSelfAttention,
  LocalSelfAttentionAlibi,
  LocalSelfAttentionRelativeBias,
  LocalSelfAttentionXL,
  alibi_slopes,
)
from pax_compat.layers.attentions.relative_bias import RelativeBias
from tests.pax_compat.layers import distance_attention
from tests.pax_compat.layers.naive_attention import random, weights_of
from tests.pax_compat.layers.step_by_step import decode

B, T, D, N, R = 2, 7, 6, 2, 4
X = random(B, T, D)
PADDINGS = (np.arange(T) >= np.array([[T], [4]])).astype(np.float32)
SEGMENTS = np.array([[1, 1, 2, 2, 2, 2, 3], [1, 1, 1, 1, 1, 1, 1]])


def _config(cls=LocalSelfAttention, **fields):
  if cls is LocalSelfAttentionXL:
    fields['rel_pos_emb_dim'] = R
  return cls.config(
    input_dim=D,
    hidden_dim=6,
    num_heads=N,
    internal_enable_per_dim_scale=False,
    zero_fully_masked=True,
    **fields,
  )


def _masks():
  """Returns masks of the shapes that there are, by name."""
  by_head = np.stack([np.ones([T, T], bool), np.tri(T, dtype=bool)])
  return {
    'none': None,
    'paddings': attention_masks.padding_mask(PADDINGS),
    'segments': attention_masks.segment_mask(SEGMENTS),
    'heads': by_head[None],
    'nothing': np.zeros([1, 1, 1, 1], bool),
  }


@pytest.mark.parametrize(
  ('window', 'mask'),
  [
    (dict(left_context=3, right_context=1), 'paddings'),
    (dict(left_context=3, right_context=1, simulated=True), 'paddings'),
    (dict(left_context=3, right_context=1), 'none'),
    (dict(left_context=1, right_context=2), 'segments'),
    (dict(left_context=4, block_size=2), 'heads'),
    (dict(left_context=2, right_context=5, block_size=1), 'segments'),
    (dict(left_context=2, right_context=1, block_size=20), 'segments'),
    (dict(left_context=20, right_context=20), 'paddings'),
    (dict(left_context=1), 'none'),
    (dict(left_context=2), 'nothing'),
  ],
  ids=str,
)
@pytest.mark.parametrize('cls', [LocalSelfAttention, LocalSelfAttentionXL])
def test_attention_to_a_window(cls, window, mask):
  config = _config(cls, **window)
  weights = weights_of(config, D)
  mask = _masks()[mask]
  y = config.Instantiate().apply({PARAMS: weights}, X, X, X, atten_mask=mask)[0]
  visible = distance_attention.window(
    T, window['left_context'], window.get('right_context', 0)
  )
  if mask is not None:
    visible = visible & np.asarray(mask)
  dims = R if cls is LocalSelfAttentionXL else 0
  want = distance_attention.layer(weights, X, visible, dims=dims)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_causal_attention_does_not_look_ahead():
  config = _config(left_context=3, right_context=2)
  weights = weights_of(config, D)
  y = config.Instantiate().apply({PARAMS: weights}, X, X, X, atten_mask=CAUSAL)[
    0
  ]
  visible = distance_attention.window(T, 3, 0)
  want = distance_attention.layer(weights, X, visible)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_all_logits():
  """Blocks overlap: what several of them see gets the sum of all."""
  fields = dict(left_context=4, right_context=3, block_size=2)
  config = _config(LocalSelfAttentionXL, **fields)
  weights = weights_of(config, D)
  cotangent = random(B, T, D, seed=5)

  def gradients(layer):
    def loss(weights, x):
      y = layer.apply({PARAMS: weights}, x, x, x)[0]
      return jnp.sum(y * cotangent)

    return jax.jit(jax.grad(loss, (0, 1)))(weights, X)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    gradients(config.Instantiate()),
    gradients(config.clone().set(simulated=True).Instantiate()),
  )


@pytest.mark.parametrize('cls', [LocalSelfAttention, LocalSelfAttentionXL])
def test_step_by_step(cls):
  config = _config(cls, left_context=3)
  weights = weights_of(config, D)
  layer = config.Instantiate()
  whole = layer.apply({PARAMS: weights}, X, X, X)[0]
  pieces = decode(layer, weights, X, [3, 1, 3], B, T)
  np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-5)


def test_memory_does_not_grow_with_the_square_of_time():
  length = 512
  config = _config(left_context=9, right_context=8)
  layer, weights = config.Instantiate(), weights_of(config, D)
  x = jax.ShapeDtypeStruct((1, length, D), jnp.float32)
  jaxpr = jax.make_jaxpr(lambda x: layer.apply({PARAMS: weights}, x, x, x)[0])(
    x
  )
  largest = max(v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars)
  assert largest < length * length / 4


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'left_context': 0}, 'left_context is 0'),
    ({'right_context': -1}, 'right_context is -1'),
    ({'block_size': 0}, 'block_size is 0'),
    ({'relative_bias_tpl': RelativeBias.config()}, 'relative_bias_tpl'),
  ],
)
def test_refuses(fields, message):
  layer = _config(**{'left_context': 2, **fields}).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init(jax.random.key(0), X, X, X)


def test_weights_are_those_of_blocks():
  fields = dict(left_context=2, right_context=1, block_size=3)
  config = _config(**fields, return_atten_probs=True)
  weights, layer = weights_of(config, D), config.Instantiate()
  mask = attention_masks.padding_mask(PADDINGS)
  encoded, probs = layer.apply({PARAMS: weights}, X, X, X, mask)
  want, _ = (
    _config(**fields).Instantiate().apply({PARAMS: weights}, X, X, X, mask)
  )
  np.testing.assert_allclose(encoded, want, rtol=1e-5, atol=1e-6)
  # 3 blocks of 3 targets, with 5 sources each.
  assert probs.shape == (B, N, 3, 3, 5)
  np.testing.assert_allclose(np.sum(probs, axis=-1), 1, rtol=1e-5)
  # The first target sees itself and the next one.
  np.testing.assert_array_equal(probs[0, 0, 0, 0] > 0, [0, 1, 1, 0, 0])


def test_cross_attention_within_the_window_step_by_step():
  config = _config(left_context=2, right_context=1)
  weights, layer = weights_of(config, D), config.Instantiate()
  source = random(B, T, D, seed=5)
  want, _ = layer.apply({PARAMS: weights}, X, source, source)
  _, state = layer.apply(
    {PARAMS: weights},
    source,
    method='init_cross_states',
    mutable=[DECODE_CACHE],
  )
  for step in range(T):
    got = layer.apply(
      {PARAMS: weights, **state},
      X[:, step],
      time_step=step,
      is_cross_attention=True,
      method='extend_step',
    )
    np.testing.assert_allclose(got, want[:, step], rtol=1e-5, atol=1e-5)
  with pytest.raises(errors.UserError, match='7 targets and 6 sources'):
    layer.apply({PARAMS: weights}, X, source[:, :6], source[:, :6])


@pytest.mark.parametrize(
  'cls', [LocalSelfAttentionAlibi, LocalSelfAttentionRelativeBias]
)
def test_a_bias_by_distance_is_not_decoded(cls):
  config = _config(cls, left_context=2)
  weights, layer = weights_of(config, D), config.Instantiate()
  with pytest.raises(errors.UserError, match='does not decode; use'):
    decode(layer, weights, X, [1] * T, B, T)
  with pytest.raises(errors.UserError, match='simulated is not supported'):
    weights_of(_config(cls, left_context=2, simulated=True), D)


def test_slopes_of_alibi():
  np.testing.assert_allclose(alibi_slopes(3), [1 / 16, 1 / 256, 1 / 4])
