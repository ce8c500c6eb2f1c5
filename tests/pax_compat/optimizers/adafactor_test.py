"""Optax's Adafactor under Pax's names, against the paper's algorithm."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import optimizers
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE, assert_steps, rms

MIN_SIZE = 4


def _factored_dims(shape):
  """Returns (dimension of columns' means, of rows' means), of sizes apart."""
  large = sorted((size, dim) for dim, size in enumerate(shape))[-2:]
  if len(shape) < 2 or large[0][0] < MIN_SIZE:
    return None
  return large[0][1], large[1][1]


def _second_moment(dims, v_row, v_col):
  """Returns R C / (mean of R) of the paper's section 3."""
  small, large = dims
  rows, cols = np.expand_dims(v_row, large), np.expand_dims(v_col, small)
  return rows * cols / np.mean(rows, axis=small, keepdims=True)


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'factored': False},
    {'multiply_by_parameter_scale': False},
    {'clip_threshold': None},
    {'clip_threshold': 0.3},
    {'momentum': 0.6},
    {'weight_decay_rate': 0.02},
    {'decay_rate': 0.5, 'decay_offset': -2},
    {'eps': 1e-3},
  ],
)
def test_steps(fields):
  """Shazeer and Stern 2018, algorithms 4 and 5."""
  clip = fields.get('clip_threshold', 1.0)
  power, offset = fields.get('decay_rate', 0.8), fields.get('decay_offset', 0)
  epsilon = fields.get('eps', 1e-30)

  def formula(name, w, gradients):
    dims = _factored_dims(w.shape) if fields.get('factored', True) else None
    del name
    v = v_row = v_col = m = 0.0
    for t, g in enumerate(gradients, 1):
      decay = 1 - (t - offset) ** -power
      squares = g * g + epsilon
      if dims is None:
        v = decay * v + (1 - decay) * squares
      else:
        v_row = decay * v_row + (1 - decay) * np.mean(squares, dims[1])
        v_col = decay * v_col + (1 - decay) * np.mean(squares, dims[0])
        v = _second_moment(dims, v_row, v_col)
      u = g / np.sqrt(v)
      if clip is not None:
        u = u / max(1.0, rms(u) / clip)
      u = RATE * u
      if fields.get('multiply_by_parameter_scale', True):
        u = u * max(1e-3, rms(w))
      if 'momentum' in fields:
        m = u = fields['momentum'] * m + (1 - fields['momentum']) * u
      w = w - u - fields.get('weight_decay_rate', 0.0) * w
      yield w

  config = optimizers.Adafactor.config(
    learning_rate=RATE, min_dim_size_to_factor=MIN_SIZE, **fields
  )
  assert_steps(config, formula)


def test_the_momentums_dtype():
  config = optimizers.Adafactor.config(
    learning_rate=RATE, momentum=0.5, dtype_momentum='bfloat16'
  )
  state = config.Instantiate().grad_transformation().init(stepping.weights())
  (ema,) = (s.ema for s in state[0] if hasattr(s, 'ema'))
  assert ema['matrix'].dtype == jnp.bfloat16


@pytest.mark.parametrize(
  'shape', [(5, 4), (4, 5), (4, 4), (6, 4, 5), (4, 4, 4), (2, 4, 4)]
)
def test_reduced_dims_are_those_of_the_state(shape):
  """The means show which dimension they are over, also of equal sizes."""
  optimizer = optimizers.Adafactor.config(
    learning_rate=RATE, min_dim_size_to_factor=MIN_SIZE
  ).Instantiate()
  transformation = optimizer.grad_transformation()
  gradient = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  weights = {'w': jnp.ones(shape)}
  _, state = transformation.update(
    {'w': gradient}, transformation.init(weights), weights
  )
  (moments,) = (s for s in state[0] if hasattr(s, 'v_row'))
  for name in ('v_row', 'v_col'):
    leaf = getattr(moments, name)['w']
    dim = optimizer.reduced_dim(name, shape, leaf.shape)
    # The first step's decay is 0: the moment is the mean of squares.
    np.testing.assert_allclose(
      leaf, np.mean(np.square(gradient), axis=dim), rtol=1e-5
    )
