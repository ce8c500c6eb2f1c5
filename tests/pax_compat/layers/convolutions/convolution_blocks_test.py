"""Blocks of convolution, normalisation and activation against their parts.

The convolution itself is held against numpy in `convolutions_test.py`.

Shapes: B batch, H height (which is time), W width, I input channels, O output
channels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.layers import activations
from pax_compat.layers.convolutions import conv
from pax_compat.layers.normalizations import norm_layers

B, H, W, O = 2, 7, 3, 4  # noqa: E741 (the letters of the legend)
FILTER = (3, 3, 2, O)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, H, W, FILTER[2])).astype(np.float32)
LENGTHS = np.array([7, 3])
PADDINGS = (np.arange(H) >= LENGTHS[:, None]).astype(np.float32)


def _variables():
  rng = np.random.default_rng(1)
  return {
    PARAMS: {
      'w': rng.normal(size=FILTER).astype(np.float32),
      'bn': {
        'beta': rng.normal(size=O).astype(np.float32),
        'gamma': rng.normal(size=O).astype(np.float32),
      },
    },
    NON_TRAINABLE: {
      'bn': {
        'moving_mean': rng.normal(size=O).astype(np.float32),
        'moving_variance': rng.uniform(1, 2, size=O).astype(np.float32),
      }
    },
  }


def _block(cls=conv.ConvBNActWithPadding, **fields):
  return cls.config(filter_shape=FILTER, **fields).Instantiate()


def _convolved(x, **fields):
  layer = conv.Conv2D.config(filter_shape=FILTER, **fields)
  w = _variables()[PARAMS]['w']
  return np.asarray(layer.Instantiate().apply({PARAMS: {'w': w}}, x))


def _normalised(y, mean, variance):
  weights = _variables()[PARAMS]['bn']
  y = (y - mean) / np.sqrt(variance + 0.001)
  return y * (1 + weights['gamma']) + weights['beta']


def test_training():
  layer = _block(conv.ConvBNAct, filter_stride=(2, 1))
  y, updates = layer.apply(_variables(), X, mutable=[NON_TRAINABLE])
  z = _convolved(X, filter_stride=(2, 1))
  mean, variance = z.mean((0, 1, 2)), z.var((0, 1, 2))
  want = np.maximum(_normalised(z, mean, variance), 0)
  np.testing.assert_allclose(y, want, atol=1e-5)
  moved = updates[NON_TRAINABLE]['bn']['moving_mean']
  first = _variables()[NON_TRAINABLE]['bn']['moving_mean']
  np.testing.assert_allclose(moved, 0.999 * first + 0.001 * mean, rtol=1e-5)


def test_evaluation():
  layer = _block(conv.ConvBNAct, activation_tpl=activations.Tanh.config())
  variables = _variables()
  with base_layer.eval_mode():
    y = layer.apply(variables, X)
  kept = variables[NON_TRAINABLE]['bn']
  z = _normalised(_convolved(X), kept['moving_mean'], kept['moving_variance'])
  np.testing.assert_allclose(y, np.tanh(z), atol=1e-5)


def test_the_normalisation_is_optional():
  layer = _block(conv.ConvBNAct, batch_norm_tpl=None)
  y = layer.apply({PARAMS: {'w': _variables()[PARAMS]['w']}}, X)
  np.testing.assert_allclose(y, np.maximum(_convolved(X), 0), atol=1e-5)


def test_the_templates_of_the_normalisation_keep_what_they_say():
  tpl = norm_layers.BatchNorm.config(use_moving_avg_in_training=True)
  layer = _block(conv.ConvBNAct, batch_norm_tpl=tpl)
  variables = layer.init(jax.random.key(0), X)
  assert set(variables[PARAMS]) == {'w'}


_CAUSAL = {'is_causal': True, 'tf_equivalent_padding': True}


# The paddings that a length of 7 gets, and those that 3 of 7 get.
@pytest.mark.parametrize(
  ('fields', 'first', 'second'),
  [
    ({}, '0000000', '0001111'),
    ({'compat_with_lingvo': True}, '0000000', '0001111'),
    ({'filter_stride': (2, 1)}, '0000', '0011'),
    ({'filter_stride': (2, 2), 'tf_equivalent_padding': True}, '0000', '0011'),
    ({'filter_stride': (3, 1)}, '000', '011'),
    # Lingvo: 2 positions a stride, of which none may be padded.
    ({'filter_stride': (2, 1), 'compat_with_lingvo': True}, '0001', '0111'),
    ({'filter_stride': (3, 1), 'compat_with_lingvo': True}, '001', '011'),
    ({'padding': 'VALID'}, '00000', '00011'),
    ({'padding': 'VALID', 'filter_stride': (2, 1)}, '000', '001'),
    ({'padding': 'VALID', 'dilations': (3, 1)}, '0', '0'),
    (_CAUSAL, '0000000', '0001111'),
  ],
)
def test_paddings_of_the_output(fields, first, second):
  y, updates, paddings = _padded(fields, X)
  want = np.array([list(map(int, row)) for row in (first, second)])
  np.testing.assert_array_equal(paddings, want)
  keeps_time = fields in ({}, _CAUSAL)  # Then Pax leaves the output as it is.
  assert (y[want > 0] == 0).all() != keeps_time
  # The batch counts what is not padded.
  convolution = {k: v for k, v in fields.items() if k != 'compat_with_lingvo'}
  z = _convolved(X * (1 - PADDINGS[..., None, None]), **convolution)[want == 0]
  mean = z.reshape(-1, O).mean(0)
  first = _variables()[NON_TRAINABLE]['bn']['moving_mean']
  np.testing.assert_allclose(
    updates['bn']['moving_mean'], 0.999 * first + 0.001 * mean, rtol=1e-5
  )
  z = _normalised(z, mean, z.reshape(-1, O).var(0))
  np.testing.assert_allclose(y[want == 0], 1 / (1 + np.exp(-z)), atol=1e-5)


def _padded(fields, x, paddings=PADDINGS):
  """Returns the output, what was updated, and the output's paddings."""
  # A sigmoid of zero is none: the output has to be set to zero after it.
  layer = _block(activation_tpl=activations.Sigmoid.config(), **fields)
  (y, paddings), updates = layer.apply(
    _variables(), x, paddings, mutable=[NON_TRAINABLE]
  )
  return np.asarray(y), updates[NON_TRAINABLE], np.asarray(paddings)


@pytest.mark.parametrize('garbage', [1e6, np.nan])
@pytest.mark.parametrize(
  'fields', [{}, {'padding': 'VALID', 'filter_stride': (2, 1)}]
)
def test_padding_has_no_influence_whatever_it_holds(garbage, fields):
  x = np.where(PADDINGS[..., None, None] > 0, garbage, X).astype(np.float32)
  jax.tree.map(
    np.testing.assert_array_equal, _padded(fields, x), _padded(fields, X)
  )


def test_more_padding_makes_no_difference():
  x = np.pad(X, [(0, 0), (0, 3), (0, 0), (0, 0)], constant_values=5)
  paddings = np.pad(PADDINGS, [(0, 0), (0, 3)], constant_values=1)
  y, updates, _ = _padded({}, X)
  longer, updates_of_longer, _ = _padded({}, x, paddings)
  np.testing.assert_allclose(longer[:, :H], y, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
    updates_of_longer,
    updates,
  )


@pytest.mark.parametrize(
  'fields', [{'padding': 'VALID'}, {'dilations': (2, 1)}]
)
def test_what_lingvo_does_not_know_is_an_error(fields):
  layer = _block(compat_with_lingvo=True, **fields)
  with pytest.raises(errors.UserError, match='compat_with_lingvo requires no'):
    layer.init(jax.random.key(0), X, PADDINGS)


def test_half_precision():
  layer = _block(fprop_dtype=jnp.bfloat16)
  x = jnp.asarray(X, jnp.bfloat16)
  (y, _), updates = layer.apply(
    _variables(), x, PADDINGS, mutable=[NON_TRAINABLE]
  )
  assert y.dtype == jnp.bfloat16
  for average in updates[NON_TRAINABLE]['bn'].values():
    assert average.dtype == jnp.float32
  (want, _), _ = _block().apply(
    _variables(), X, PADDINGS, mutable=[NON_TRAINABLE]
  )
  np.testing.assert_allclose(y.astype(jnp.float32), want, rtol=0.05, atol=0.05)
