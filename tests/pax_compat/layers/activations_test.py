"""Activations against their formulas."""

import numpy as np
import pytest
from scipy import special, stats

from pax_compat.layers import activations

X = np.linspace(-6, 6, 25, dtype=np.float64)


def _tanh_gelu(x):
  inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
  return 0.5 * x * (1 + np.tanh(inner))


@pytest.mark.parametrize(
  ('config', 'formula'),
  [
    (activations.Identity.config(), lambda x: x),
    (activations.ReLU.config(), lambda x: np.maximum(x, 0)),
    (activations.Sigmoid.config(), special.expit),
    (activations.Tanh.config(), np.tanh),
    (activations.GELU.config(), _tanh_gelu),
    (
      activations.GELU.config(approximate=False),
      lambda x: x * stats.norm.cdf(x),
    ),
    (activations.SiLU.config(), lambda x: x * special.expit(x)),
  ],
)
def test_formula(config, formula):
  y = config.Instantiate().apply({}, X.astype(np.float32))
  np.testing.assert_allclose(y, formula(X), rtol=1e-5, atol=1e-6)
