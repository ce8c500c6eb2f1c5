"""Depthwise convolutions against sums over time.

Shapes: B batch, T time, I input channels, M channel multiplier, K kernel size,
N heads, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS, WeightInit
from pax_compat.layers.convolutions import depthwise_convolutions

B, T = 2, 6
RNG = np.random.default_rng(0)
PADDINGS = (np.arange(T) >= np.array([[6], [3]])).astype(np.float32)


def _convolved(x, w, dilation, before, length):
  """Returns y [B, length, I * M] of x [B, T, I] and w [K, I * M].

  Args:
    x: the inputs.
    w: the kernel, in which the M outputs of an input are side by side.
    dilation: the distance of its elements.
    before: the number of zeros before the inputs.
    length: of the output.
  """
  x = np.repeat(x.astype(np.float64), w.shape[1] // x.shape[2], axis=2)
  y = np.zeros([x.shape[0], length, w.shape[1]])
  for t in range(length):
    for k in range(w.shape[0]):
      seen = t + k * dilation - before
      if 0 <= seen < x.shape[1]:
        y[:, t] += x[:, seen] * w[k]
  return y


def _config(size, inputs, multiplier, **fields):
  return depthwise_convolutions.DepthwiseConv1D.config(
    filter_shape=(size, inputs, multiplier), **fields
  )


@pytest.mark.parametrize('multiplier', [1, 2])
@pytest.mark.parametrize('as_2d', [False, True])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize(
  ('fields', 'size', 'before', 'length'),
  [
    ({}, 3, 1, T),
    ({}, 4, 1, T),
    ({'rhs_dilation_rate': 2}, 3, 2, T),
    ({'is_causal': True}, 3, 2, T),
    ({'is_causal': True, 'rhs_dilation_rate': 2}, 2, 2, T),
    ({'padding': 'VALID'}, 3, 0, T - 2),
  ],
)
def test_convolution(multiplier, as_2d, padded, fields, size, before, length):
  x = RNG.normal(size=(B, T, 3)).astype(np.float32)
  w = RNG.normal(size=(size, 3 * multiplier)).astype(np.float32)
  b = np.arange(3 * multiplier, dtype=np.float32)
  config = _config(
    size, 3, multiplier, bias=True, use_2d_conv_weight_shape=as_2d, **fields
  )
  shaped = w[:, None, :, None] if as_2d else w[:, None]
  y = config.Instantiate().apply(
    {PARAMS: {'w': shaped, 'b': b}}, x, PADDINGS if padded else None
  )
  if padded:
    x = x * (1 - PADDINGS[..., None])
  dilation = fields.get('rhs_dilation_rate', 1)
  want = _convolved(x, w, dilation, before, length) + b
  np.testing.assert_allclose(y, want, atol=1e-5)


def test_first_values_and_dtype():
  config = _config(
    3,
    2,
    1,
    bias=True,
    bias_init=WeightInit.Constant(0.5),
    fprop_dtype=jnp.bfloat16,
  )
  layer = config.Instantiate()
  x = jnp.zeros([B, T, 2])
  y, variables = layer.init_with_output(jax.random.key(0), x, PADDINGS)
  assert y.dtype == jnp.bfloat16
  assert variables[PARAMS]['w'].value.dtype == jnp.float32
  np.testing.assert_array_equal(y.astype(jnp.float32), 0.5)


def test_padding_has_no_influence_whatever_it_holds():
  x = RNG.normal(size=(B, T, 2)).astype(np.float32)
  layer = _config(3, 2, 1).Instantiate()
  variables = layer.init_boxed(jax.random.key(0), x)
  garbage = np.where(PADDINGS[..., None] > 0, np.nan, x)
  np.testing.assert_array_equal(
    layer.apply(variables, garbage, PADDINGS),
    layer.apply(variables, x, PADDINGS),
  )


@pytest.mark.parametrize(
  ('him', 'w', 'b'),
  [
    (['x', 'y', None], ['x', None, ('y',)], [('y',)]),
    ([None, 'y', 'z'], [None, None, ('y', 'z')], [('y', 'z')]),
    ([None, None, None], [None, None, None], [None]),
    (None, None, None),
  ],
)
@pytest.mark.parametrize('as_2d', [False, True])
def test_weights_are_split_as_declared(him, w, b, as_2d):
  sharding = depthwise_convolutions.DepthwiseConv1D.WeightSharding
  config = _config(
    2,
    3,
    1,
    bias=True,
    use_2d_conv_weight_shape=as_2d,
    weight_split_dims_mapping=sharding.config(him=him),
  )
  x = jnp.ones([B, T, 3])
  boxes = config.Instantiate().init_boxed(jax.random.key(0), x)[PARAMS]
  if as_2d and w is not None:
    w = [*w, None]
  assert boxes['w'].meta.tensor_split_dims_mapping == w
  assert boxes['b'].meta.tensor_split_dims_mapping == b


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'filter_shape': (3, 2)}, 'filter_shape is .3, 2.'),
    ({'rhs_dilation_rate': 0}, 'rhs_dilation_rate is 0'),
    ({'padding': 'same'}, "padding is 'same'"),
    (
      {'padding': 'VALID', 'is_causal': True},
      "is_causal requires padding='SAME'",
    ),
    (
      {
        'weight_split_dims_mapping': (
          depthwise_convolutions.DepthwiseConv1D.WeightSharding.config(
            wt=[None, None, 'mdl']
          )
        )
      },
      'mapping.wt is .*; expected him',
    ),
  ],
)
def test_fields_that_do_not_fit_are_an_error(fields, message):
  layer = _config(3, 2, 1).set(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init_boxed(jax.random.key(0), jnp.ones([B, T, 2]))


def _causal(dims, kernel_size=3):
  """Returns a layer and random weights for it."""
  config = depthwise_convolutions.CausalDepthwiseConv1D.config(
    kernel_size=kernel_size, hidden_dims=dims
  )
  shape = [dims] if isinstance(dims, int) else dims
  weights = {
    f'dconv_{i}': RNG.normal(size=shape).astype(np.float32)
    for i in range(kernel_size)
  }
  return config.Instantiate(), weights


# Two segments of 4 and 2 positions, and three of 1, 3 and 2.
SEGMENT_POS = np.array([[0, 1, 2, 3, 0, 1], [0, 0, 1, 2, 0, 1]])


def _causally_convolved(x, weights, segment_pos):
  """Returns y [B, T, ...] of x [B, T, ...]."""
  y = np.zeros(x.shape)
  for b, t in np.ndindex(*x.shape[:2]):
    for i in range(len(weights)):
      if i <= segment_pos[b, t]:
        y[b, t] += x[b, t - i] * weights[f'dconv_{i}']
  return y


@pytest.mark.parametrize('dims', [3, (2, 3), [2, 3]])
@pytest.mark.parametrize('kernel_size', [1, 3, 8])
@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('axis', [1, 0])
def test_causal_convolution(dims, kernel_size, packed, axis):
  layer, weights = _causal(dims, kernel_size)
  shape = [dims] if isinstance(dims, int) else dims
  x = RNG.normal(size=(B, T, *shape)).astype(np.float32)
  positions = SEGMENT_POS if packed else np.tile(np.arange(T), [B, 1])
  want = _causally_convolved(x, weights, positions)
  y = layer.apply(
    {PARAMS: weights},
    x if axis == 1 else x.swapaxes(0, 1),
    axis,
    SEGMENT_POS if packed else None,
  )
  y = y if axis == 1 else y.swapaxes(0, 1)
  np.testing.assert_allclose(y, want, atol=1e-5)


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('axis', [1, 0])
def test_one_step_at_a_time(packed, axis):
  layer, weights = _causal((2, 3))
  x = RNG.normal(size=(B, T, 2, 3)).astype(np.float32)
  positions = SEGMENT_POS if packed else np.tile(np.arange(T), [B, 1])
  want = _causally_convolved(x, weights, positions)

  @jax.jit
  def step(x, t, position):
    return layer.apply(
      {PARAMS: weights}, x, axis, t, position, method='extend_step'
    )

  for t in range(T):
    so_far = np.where(np.arange(T)[:, None, None] <= t, x, np.nan)
    so_far = so_far if axis == 1 else so_far.swapaxes(0, 1)
    y = step(so_far, t, SEGMENT_POS[:, t] if packed else None)
    np.testing.assert_allclose(y, want[:, t], atol=1e-5)


def test_first_values_of_the_causal_convolution():
  layer, weights = _causal(3, 4)
  variables = layer.init_boxed(jax.random.key(0), jnp.ones([B, T, 3]))[PARAMS]
  assert set(variables) == set(weights)
  first = {k: set(box.value.tolist()) for k, box in variables.items()}
  assert first == {f'dconv_{i}': {0.125 if i else 0.5} for i in range(4)}


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'kernel_size': 0}, 'kernel_size is 0'),
    ({'hidden_dims': 0}, 'hidden_dims 0'),
    ({'hidden_dims': []}, 'hidden_dims'),
  ],
)
def test_causal_fields_that_do_not_fit_are_an_error(fields, message):
  config = depthwise_convolutions.CausalDepthwiseConv1D.config(hidden_dims=3)
  layer = config.set(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init_boxed(jax.random.key(0), jnp.ones([B, T, 3]))


def test_time_is_one_of_the_first_two_dimensions():
  layer, weights = _causal(3)
  with pytest.raises(errors.UserError, match='time is dimension 2'):
    layer.apply({PARAMS: weights}, jnp.ones([B, T, 3]), 2)
