"""Schedules against their formulas."""

import jax
import numpy as np
import pytest

from pax_compat import schedules


def _values(config, *steps):
  value_at = jax.jit(config.Instantiate().value_at)
  return [float(value_at(step)) for step in steps]


def test_constant():
  assert _values(schedules.Constant.config(), 0, 10**6) == [1, 1]
  assert _values(schedules.Constant.config(value=0.5), 7) == [0.5]


def test_transformer_is_that_of_the_paper():
  """Vaswani et al. 2017, equation 3, whose step starts at 1."""
  config = schedules.Transformer.config(warmup_steps=100, model_dim=64)
  steps = [0, 1, 50, 98, 99, 100, 5000]
  want = [64**-0.5 * min((s + 1) ** -0.5, (s + 1) * 100**-1.5) for s in steps]
  np.testing.assert_allclose(_values(config, *steps), want, rtol=1e-5)
  # It is highest where the rise meets the fall.
  assert np.argmax(_values(config, *range(300))) == 99


@pytest.mark.parametrize(
  ('fields', 'step', 'want'),
  [
    # Two replicas: a warm-up of 8 steps.
    ({'worker_replicas': 2}, 3, 4 * 8**-1.5),
    ({'worker_replicas': 2}, 24, 25**-0.5),
    # The value stays what it was at step 24.
    ({'decay_end': 24}, 10**5, 25**-0.5),
    ({'decay_end': 24}, 15, 16**-0.5),
    ({'decay_factor': -0.25}, 80, 81**-0.25),
    ({'decay_factor': -0.25}, 1, 2 * 4**-1.25),
    ({'start_step': 5}, 10, 16**-0.5),
  ],
)
def test_transformer_fields(fields, step, want):
  config = schedules.Transformer.config(warmup_steps=4, model_dim=1, **fields)
  np.testing.assert_allclose(_values(config, step), [want], rtol=1e-5)
