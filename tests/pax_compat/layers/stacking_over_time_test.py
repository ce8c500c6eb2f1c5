"""Stacking over time against a loop in numpy.

Shapes: B batch, T time, D dims.
"""

import math

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import stacking_over_time

B, D = 2, 3
RNG = np.random.default_rng(0)


def _layer(left, right, stride, **fields):
  return stacking_over_time.StackingOverTime.config(
    left_context=left, right_context=right, stride=stride, **fields
  ).Instantiate()


def _stack(x, left, right, stride, before, after):
  """Stacks by a loop; `before` and `after` give steps beyond the ends."""
  length, windows = x.shape[1], []
  for centre in range(0, length, stride):
    window = []
    for t in range(centre - left, centre + right + 1):
      window.append(
        before(x) if t < 0 else after(x) if t >= length else x[:, t]
      )
    windows.append(np.concatenate(window, -1))
  return np.stack(windows, 1)


SHAPES = [(0, 0, 1), (0, 0, 2), (1, 1, 3), (2, 0, 2), (0, 3, 2), (2, 1, 1)]


@pytest.mark.parametrize(('left', 'right', 'stride'), SHAPES)
@pytest.mark.parametrize('length', [1, 6, 7])
def test_zeros_beyond_the_ends(left, right, stride, length):
  layer = _layer(left, right, stride)
  x = RNG.normal(size=(B, length, D)).astype(np.float32)
  paddings = np.zeros([B, length, 1], np.float32)
  paddings[1, length // 2 :] = 1
  y, out_paddings = layer.apply({}, x, paddings)

  def zeros(x):
    return 0 * x[:, 0]

  def ones(x):
    return 0 * x[:, 0] + 1

  np.testing.assert_array_equal(y, _stack(x, left, right, stride, zeros, zeros))
  stacked = _stack(paddings, left, right, stride, ones, ones)
  np.testing.assert_array_equal(out_paddings, stacked.min(-1, keepdims=True))
  assert y.shape == (B, math.ceil(length / stride), D * layer.window_size)


def test_the_ends_repeated_beyond_them():
  x = RNG.normal(size=(B, 5, D)).astype(np.float32)
  paddings = np.array([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]], np.float32)
  layer = _layer(
    2,
    1,
    2,
    pad_with_left_frame=True,
    pad_with_right_frame=True,
    padding_reduce_option='reduce_max',
  )
  y, out_paddings = layer.apply({}, x, paddings)
  ends = (lambda x: x[:, 0], lambda x: x[:, -1])
  np.testing.assert_array_equal(y, _stack(x, 2, 1, 2, *ends))
  # Any step of the windows 0 0 (0) 1, 0 1 (2) 3, 2 3 (4) 4.
  np.testing.assert_array_equal(out_paddings, [[0, 0, 0], [0, 1, 1]])


def test_without_paddings_nothing_is_padding():
  y, paddings = _layer(1, 1, 3).apply({}, np.ones([B, 7, D], np.float32))
  np.testing.assert_array_equal(paddings, np.zeros([B, 3, 1]))
  np.testing.assert_array_equal(y[0, 0], [0] * D + [1] * 2 * D)


@pytest.mark.parametrize(
  ('left', 'right', 'stride'), [(0, 0, 1), (1, 1, 3), (2, 0, 2), (0, 3, 2)]
)
@pytest.mark.parametrize('length', [6, 7])
def test_unstacked(left, right, stride, length):
  layer = _layer(left, right, stride)
  x = RNG.normal(size=(B, length, D)).astype(np.float32)
  y, _ = layer.apply({}, x)
  back = layer.apply({}, y, method='unstack')
  count = (y.shape[1] - 1) * stride + right + 1
  assert back.shape == (B, count, D)
  shared = min(count, length)
  np.testing.assert_array_equal(back[:, :shared], x[:, :shared])
  np.testing.assert_array_equal(back[:, shared:], 0 * back[:, shared:])


def test_a_step_is_taken_from_the_window_before_it_if_that_has_it():
  """Two windows have each odd step: 0 (0) 1, 1 (2) 3 and 3 (4) 5."""
  layer = _layer(1, 1, 2)
  # The windows, identified by their contents.
  stacked = np.repeat([10.0, 20.0, 30.0], 3).reshape(1, 3, 3)
  back = layer.apply({}, stacked, method='unstack')
  np.testing.assert_array_equal(back[0, :, 0], [10, 10, 20, 20, 30, 30])


def test_what_is_between_windows_is_lost():
  layer = _layer(0, 1, 3)
  y, _ = layer.apply({}, np.ones([B, 7, D], np.float32))
  with pytest.raises(errors.UserError, match='stride, 3, skips steps'):
    layer.apply({}, y, method='unstack')


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'stride': 0}, 'stride is 0; expected 1 or more'),
    ({'left': -1}, 'left_context is -1; expected 0 or more'),
    (
      {'padding_reduce_option': 'reduce_mean'},
      "option is 'reduce_mean'; did you mean: reduce_m",
    ),
  ],
)
def test_fields_that_do_not_fit(fields, message):
  layer = _layer(**{'left': 0, 'right': 0, 'stride': 1, **fields})
  with pytest.raises(errors.UserError, match=message):
    layer.apply({}, np.ones([B, 7, D], np.float32))
