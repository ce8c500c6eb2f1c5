"""First weights against the formulas of their distributions.

The test of the same name under tests/adaptors/translate holds them against
Lingvo's.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pax_compat import errors
from pax_compat.layer_core.weight_init import WeightInit, fans

SCALE = 0.7

# A vector, a matrix and a kernel, each of 12,000 elements, by dimensions:
# (shape, fan_in, fan_out, product of all dimensions but the last).
SHAPES = {
  1: ((12_000,), 12_000, 12_000, 1),
  2: ((100, 120), 100, 120, 100),
  4: ((2, 3, 40, 50), 240, 300, 240),
}


def _normal(deviation):
  return stats.norm(0, deviation)


def _truncated(deviation):
  return stats.truncnorm(-2, 2, 0, deviation)


def _uniform(bound):
  return stats.uniform(-bound, 2 * bound)


# By method: (shape, fan_in, fan_out, inputs) -> distribution.
DISTRIBUTIONS = {
  'Gaussian': lambda *_: _normal(SCALE),
  'GaussianSqrtDim': lambda s, i, o, n: _normal(SCALE / math.sqrt(s[0])),
  'GaussianSqrtFanIn': lambda s, i, o, n: _normal(SCALE / math.sqrt(i)),
  'GaussianSqrtFanOut': lambda s, i, o, n: _normal(SCALE / math.sqrt(o)),
  'GaussianSqrtFanAvg': lambda s, i, o, n: _normal(
    SCALE / math.sqrt((i + o) / 2)
  ),
  'TruncatedGaussian': lambda *_: _truncated(SCALE),
  'TruncatedGaussianSqrtDim': lambda s, i, o, n: _truncated(
    SCALE / math.sqrt(s[0])
  ),
  'TruncatedGaussianSqrtFanIn': lambda s, i, o, n: _truncated(
    SCALE / math.sqrt(i)
  ),
  'TruncatedGaussianSqrtFanOut': lambda s, i, o, n: _truncated(
    SCALE / math.sqrt(o)
  ),
  'TruncatedGaussianSqrtFanAvg': lambda s, i, o, n: _truncated(
    SCALE / math.sqrt((i + o) / 2)
  ),
  'Uniform': lambda *_: _uniform(SCALE),
  'UniformPositive': lambda *_: stats.uniform(0, SCALE),
  'UniformSqrtDim': lambda s, i, o, n: _uniform(SCALE / math.sqrt(s[0])),
  # Of the variance of GaussianSqrtFanAvg.
  'UniformSqrtFanAvg': lambda s, i, o, n: _uniform(
    math.sqrt(3) * SCALE / math.sqrt((i + o) / 2)
  ),
  'UniformUnitScaling': lambda s, i, o, n: _uniform(SCALE * math.sqrt(3 / n)),
  'UniformUnitScalingFanAvg': lambda s, i, o, n: _uniform(
    math.sqrt(3 * SCALE / ((i + o) / 2))
  ),
  # Glorot and Bengio 2010, equation 16.
  'Xavier': lambda s, i, o, n: _uniform(
    SCALE * math.sqrt(6) / math.sqrt(i + o)
  ),
  'XavierWithFixupParams': lambda s, i, o, n: _uniform(
    SCALE * math.sqrt(6) / math.sqrt(i + o)
  ),
  'GeoMeanXavier': lambda s, i, o, n: _uniform(
    SCALE * math.sqrt(3) / (i * o) ** 0.25
  ),
  # He et al. 2015, equations 10 and 15, in uniform distributions.
  'KaimingUniformFanInRelu': lambda s, i, o, n: _uniform(
    math.sqrt(3) * math.sqrt(2 / n)
  ),
  'KaimingUniformFanInLeakyRelu': lambda s, i, o, n: _uniform(
    math.sqrt(3) * math.sqrt(2 / ((1 + SCALE**2) * n))
  ),
}


def _init(method):
  constructor = getattr(WeightInit, method)
  return (
    constructor() if method == 'KaimingUniformFanInRelu' else constructor(SCALE)
  )


def _draw(init, shape, dtype=jnp.float32):
  return np.asarray(init(jax.random.key(3), shape, dtype))


@pytest.mark.parametrize('dims', SHAPES)
@pytest.mark.parametrize('method', DISTRIBUTIONS)
def test_values_have_the_distribution(method, dims):
  want = DISTRIBUTIONS[method](*SHAPES[dims])
  values = _draw(_init(method), SHAPES[dims][0])
  assert values.shape == SHAPES[dims][0] and values.dtype == np.float32
  values = values.ravel()
  # Of 12,000 draws, the mean has a standard error of 0.9% of the deviation, and
  # the deviation one of 0.7%.
  assert abs(values.mean() - want.mean()) <= 0.04 * want.std()
  np.testing.assert_allclose(values.std(), want.std(), rtol=0.03)
  assert stats.kstest(values, want.cdf).pvalue > 1e-4
  low, high = want.support()
  assert values.min() >= low * (1 + 1e-6) - 1e-9
  assert values.max() <= high * (1 + 1e-6)


def test_every_method_is_tested():
  """Those that are not in the table above have tests of their own."""
  constructors = {
    name for name, x in vars(WeightInit).items() if isinstance(x, classmethod)
  }
  others = {'Constant', 'Category', 'ScaledDeltaOrthogonal'}
  assert constructors == set(DISTRIBUTIONS) | others


def test_fixup():
  """Zhang et al. 2019: L ** (-1 / (2m - 2)) with m - 1 = 3."""
  init = WeightInit.XavierWithFixupParams(0.5, 64, 3)
  assert init.method == 'xavier'
  np.testing.assert_allclose(init.scale, 0.5 * 64 ** (-1 / 6))


@pytest.mark.parametrize('dims', SHAPES)
def test_category(dims):
  values = _draw(WeightInit.Category(4), SHAPES[dims][0])
  numbers, counts = np.unique(values, return_counts=True)
  assert numbers.tolist() == [0, 1, 2, 3]
  # Each count has a standard error of 1.6%.
  np.testing.assert_allclose(counts, 3000, rtol=0.08)


@pytest.mark.parametrize('dims', SHAPES)
def test_constant(dims):
  shape = SHAPES[dims][0]
  values = _draw(WeightInit.Constant(2.5), shape, jnp.bfloat16)
  assert values.shape == shape and values.dtype == jnp.bfloat16
  assert (values == 2.5).all()
  assert (_draw(WeightInit.Constant(), shape) == 1).all()


@pytest.mark.parametrize(
  ('shape', 'middle'),
  [((6, 4), ()), ((4, 6), ()), ((3, 6, 4), 1), ((5, 2, 6, 4), (2, 0))],
)
def test_delta_orthogonal(shape, middle):
  kernel = _draw(WeightInit.ScaledDeltaOrthogonal(0.5), shape)
  matrix = kernel[middle]
  assert np.count_nonzero(kernel) == np.count_nonzero(matrix)
  rows, columns = shape[-2:]
  gram = matrix.T @ matrix if rows > columns else matrix @ matrix.T
  want = 0.5**2 * max(1, rows / columns) * np.eye(min(rows, columns))
  np.testing.assert_allclose(gram, want, atol=1e-5)


def test_delta_orthogonal_of_a_vector_is_gaussian():
  values = _draw(WeightInit.ScaledDeltaOrthogonal(0.5), (12_000,))
  assert stats.kstest(values, stats.norm(0, 0.5).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
  ('shape', 'want'),
  [((), (1, 1)), ((7,), (7, 7)), ((3, 5), (3, 5)), ((2, 3, 5), (6, 10))],
)
def test_fans(shape, want):
  assert fans(shape) == want


def test_fans_of_named_axes():
  assert fans((2, 3, 5), [0], [1, 2]) == (2, 15)
  assert fans((2, 3, 5), [], [-1]) == (1, 5)
  with pytest.raises(errors.UserError, match='expected both or neither'):
    fans((2, 3, 5), fan_in_axes=[0])


def test_a_resolved_distribution_does_not_depend_on_the_shape():
  resolved = WeightInit.Xavier(1.0).for_shape([100, 200])
  bound = math.sqrt(6 / 300)
  values = _draw(resolved, (50, 400))
  assert bound * 0.999 < np.abs(values).max() <= bound


def test_a_resolved_distribution_of_named_axes():
  resolved = WeightInit.GaussianSqrtFanIn(2.0).for_shape(
    [4, 25, 7], [0, 1], [2]
  )
  assert resolved.method == 'gaussian'
  np.testing.assert_allclose(resolved.scale, 2 / 10)


def test_elements_that_depend_on_each_other_have_no_other_layout():
  with pytest.raises(errors.UserError, match="'delta_orthogonal' cannot"):
    WeightInit.ScaledDeltaOrthogonal().for_shape([4, 4])


def test_another_key_draws_other_values():
  init = WeightInit.Gaussian()
  one = init(jax.random.key(0), (8,), jnp.float32)
  other = init(jax.random.key(1), (8,), jnp.float32)
  assert not np.any(np.asarray(one) == np.asarray(other))


@pytest.mark.parametrize('method', DISTRIBUTIONS)
def test_a_scalar_has_a_first_value(method):
  value = _draw(_init(method), ())
  assert value.shape == () and np.isfinite(value)


def test_integers():
  for init in (WeightInit.Constant(3), WeightInit.Constant(3.0)):
    values = _draw(init, (4,), jnp.int32)
    assert values.dtype == jnp.int32 and (values == 3).all()
  values = _draw(WeightInit.Category(1000), (4,), jnp.int32)
  assert values.dtype == jnp.int32 and values.any()
  for init in (WeightInit.Constant(0.5), WeightInit.Gaussian()):
    with pytest.raises(
      errors.UserError, match='a weight of dtype int32 has the'
    ):
      _draw(init, (4,), jnp.int32)


@pytest.mark.parametrize(
  ('method', 'near'),
  [
    ('gausian', 'gaussian'),
    ('xavierr', 'xavier'),
    ('gaussian_sqrt_fanim', 'gaussian_sqrt_fanin'),
    ('constant_sqrt_dim', 'gaussian_sqrt_dim'),
    ('delta_ortogonal', 'delta_orthogonal'),
  ],
)
def test_an_unknown_method_is_an_error_with_the_near_name(method, near):
  with pytest.raises(errors.UserError, match=f"'{method}'; .*mean: {near}"):
    WeightInit(method)(jax.random.key(0), (2,), jnp.float32)
