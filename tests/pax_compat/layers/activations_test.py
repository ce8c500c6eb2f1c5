"""Activations against their formulas."""

import numpy as np
import pytest
from scipy import special, stats

from pax_compat import errors
from pax_compat.layers import activations

X = np.linspace(-7, 7, 25, dtype=np.float64)


def _tanh_gelu(x):
  inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
  return 0.5 * x * (1 + np.tanh(inner))


@pytest.mark.parametrize(
  ('config', 'formula'),
  [
    (activations.Identity.config(), lambda x: x),
    (activations.ReLU.config(), lambda x: np.maximum(x, 0)),
    (activations.SineReLU.config(), lambda x: np.sin(np.maximum(x, 0))),
    (activations.ReLU6.config(), lambda x: np.clip(x, 0, 6)),
    (activations.SquaredReLU.config(), lambda x: np.maximum(x, 0) ** 2),
    (activations.CubedReLU.config(), lambda x: np.maximum(x, 0) ** 3),
    (activations.LeakyReLU.config(), lambda x: np.where(x > 0, x, 0.01 * x)),
    (
      activations.LeakyReLU.config(negative_slope=0.3),
      lambda x: np.where(x > 0, x, 0.3 * x),
    ),
    (activations.ELU.config(), lambda x: np.where(x > 0, x, np.expm1(x))),
    (activations.Sigmoid.config(), special.expit),
    (activations.Tanh.config(), np.tanh),
    (activations.GELU.config(), _tanh_gelu),
    (
      activations.GELU.config(approximate=False),
      lambda x: x * stats.norm.cdf(x),
    ),
    (activations.SiLU.config(), lambda x: x * special.expit(x)),
    (activations.Swish.config(), lambda x: x * special.expit(x)),
    (activations.Softplus.config(), lambda x: np.log1p(np.exp(x))),
    (activations.Exp.config(), np.exp),
  ],
)
def test_formula(config, formula):
  y = config.Instantiate().apply({}, X.astype(np.float32))
  np.testing.assert_allclose(y, formula(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ('name', 'activation'),
  [
    ('relu', activations.ReLU),
    ('SQUARED_RELU', activations.SquaredReLU),
    ('LeakyReLU', activations.LeakyReLU),
  ],
)
def test_found_by_name(name, activation):
  found = activations.BaseActivation.get_subclass_by_name(name)
  assert found is activation


def test_an_unknown_name_is_an_error_with_near_names():
  with pytest.raises(errors.UserError, match="'gelo'; did you mean: GELU"):
    activations.BaseActivation.get_subclass_by_name('gelo')


def test_an_activation_of_a_user_is_found_unless_it_takes_a_name_twice():
  find = activations.BaseActivation.get_subclass_by_name

  class Triple(activations.BaseActivation):
    def __call__(self, inputs):
      return 3 * inputs

  assert find('triple')(name='t').apply({}, 2.0) == 6.0

  class TRIPLE(activations.BaseActivation):
    pass

  with pytest.raises(errors.UserError, match='several activations'):
    find('triple')
  assert TRIPLE is not Triple  # both are alive until here
