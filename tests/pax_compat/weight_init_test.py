"""First weights against the formulas of their distributions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pax_compat import errors
from pax_compat.weight_init import WeightInit, fans

SCALE = 0.7
# A convolution kernel: fan_in = 2 * 3 * 40, fan_out = 2 * 3 * 50.
SHAPE = (2, 3, 40, 50)
FAN_IN, FAN_OUT = 240, 300

GAUSSIANS = {
  'Gaussian': SCALE,
  'GaussianSqrtDim': SCALE / math.sqrt(2),
  'GaussianSqrtFanIn': SCALE / math.sqrt(FAN_IN),
  'GaussianSqrtFanOut': SCALE / math.sqrt(FAN_OUT),
  'GaussianSqrtFanAvg': SCALE / math.sqrt((FAN_IN + FAN_OUT) / 2),
}
TRUNCATED = {
  'TruncatedGaussian': SCALE,
  'TruncatedGaussianSqrtDim': SCALE / math.sqrt(2),
  'TruncatedGaussianSqrtFanIn': SCALE / math.sqrt(FAN_IN),
  'TruncatedGaussianSqrtFanOut': SCALE / math.sqrt(FAN_OUT),
}
# (lowest, highest)
UNIFORMS = {
  'Uniform': (-SCALE, SCALE),
  'UniformPositive': (0, SCALE),
  'UniformSqrtDim': (-SCALE / math.sqrt(2), SCALE / math.sqrt(2)),
  'UniformUnitScaling': (
    -SCALE * math.sqrt(3 / FAN_IN),
    SCALE * math.sqrt(3 / FAN_IN),
  ),
  # Glorot and Bengio 2010, equation 16.
  'Xavier': (
    -SCALE * math.sqrt(6) / math.sqrt(FAN_IN + FAN_OUT),
    SCALE * math.sqrt(6) / math.sqrt(FAN_IN + FAN_OUT),
  ),
  'GeoMeanXavier': (
    -SCALE * math.sqrt(3) / (FAN_IN * FAN_OUT) ** 0.25,
    SCALE * math.sqrt(3) / (FAN_IN * FAN_OUT) ** 0.25,
  ),
}
DISTRIBUTIONS = (
  {name: stats.norm(0, s) for name, s in GAUSSIANS.items()}
  | {name: stats.truncnorm(-2, 2, 0, s) for name, s in TRUNCATED.items()}
  | {name: stats.uniform(a, b - a) for name, (a, b) in UNIFORMS.items()}
)


def _draw(init, shape=SHAPE, dtype=jnp.float32):
  return np.asarray(init(jax.random.key(3), shape, dtype))


@pytest.mark.parametrize('method', DISTRIBUTIONS)
def test_values_have_the_distribution(method):
  values = _draw(getattr(WeightInit, method)(SCALE)).ravel()
  want = DISTRIBUTIONS[method]
  # Of 12,000 draws, the deviation has a standard error of 0.7%.
  np.testing.assert_allclose(values.std(), want.std(), rtol=0.03)
  assert stats.kstest(values, want.cdf).pvalue > 1e-3
  low, high = want.support()
  assert values.min() >= low * (1 + 1e-6) - 1e-9
  assert values.max() <= high * (1 + 1e-6)


def test_constant():
  values = _draw(WeightInit.Constant(2.5), dtype=jnp.bfloat16)
  assert values.shape == SHAPE and values.dtype == jnp.bfloat16
  assert (values == 2.5).all()
  assert (_draw(WeightInit.Constant()) == 0).all()


@pytest.mark.parametrize(
  ('shape', 'want'),
  [((), (1, 1)), ((7,), (7, 7)), ((3, 5), (3, 5)), ((2, 3, 5), (6, 10))],
)
def test_fans(shape, want):
  assert fans(shape) == want


def test_a_resolved_distribution_does_not_depend_on_the_shape():
  resolved = WeightInit.Xavier(1.0).for_shape([100, 200])
  bound = math.sqrt(6 / 300)
  values = _draw(resolved, (50, 400))
  assert bound * 0.999 < np.abs(values).max() <= bound


def test_another_key_draws_other_values():
  init = WeightInit.Gaussian()
  one = init(jax.random.key(0), (8,), jnp.float32)
  other = init(jax.random.key(1), (8,), jnp.float32)
  assert not np.any(np.asarray(one) == np.asarray(other))


@pytest.mark.parametrize('method', DISTRIBUTIONS)
def test_a_scalar_has_a_first_value(method):
  value = _draw(getattr(WeightInit, method)(SCALE), ())
  assert value.shape == () and np.isfinite(value)


@pytest.mark.parametrize(
  ('method', 'near'),
  [
    ('gausian', 'gaussian'),
    ('xavierr', 'xavier'),
    ('gaussian_sqrt_fanim', 'gaussian_sqrt_fanin'),
    ('constant_sqrt_dim', 'gaussian_sqrt_dim'),
  ],
)
def test_an_unknown_method_is_an_error_with_the_near_name(method, near):
  with pytest.raises(errors.UserError, match=f"'{method}'; .*mean: {near}"):
    WeightInit(method)(jax.random.key(0), (2,), jnp.float32)
