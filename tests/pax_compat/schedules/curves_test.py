"""Schedules with one formula against the formula."""

import math

import numpy as np
import pytest

from pax_compat import errors, schedules
from tests.pax_compat.schedules.values import assert_values, values

STEPS = [0, 1, 4, 5, 6, 9, 10, 11, 19, 20, 21, 100, 10**6]


def _ratio(step, start, end):
  return min(max((step - start) / (end - start), 0.0), 1.0)


def test_constant():
  assert_values(schedules.Constant.config(), STEPS, lambda t: 1.0)
  assert_values(schedules.Constant.config(value=0.5), STEPS, lambda t: 0.5)


@pytest.mark.parametrize('power', [1, 2, 0.5])
@pytest.mark.parametrize('origin', ['start', 'limit'])
def test_polynomial(origin, power):
  def formula(t):
    r = _ratio(t, 5, 20)
    curve = r**power if origin == 'start' else 1 - (1 - r) ** power
    return 3.0 + curve * (0.7 - 3.0)

  config = schedules.Polynomial.config(
    start=(5, 3.0), limit=(20, 0.7), power=power, origin=origin
  )
  assert_values(config, STEPS, formula)
  # Exactly the ends, without rounding.
  assert list(values(config, [0, 5])) == [3.0, 3.0]
  assert list(values(config, [20, 21])) == [np.float32(0.7)] * 2


def test_linear():
  config = schedules.Linear.config(start=(5, 0.0), limit=(20, 3.0))
  assert_values(config, STEPS, lambda t: 3.0 * _ratio(t, 5, 20))


def test_exponential():
  config = schedules.Exponential.config(start=(5, 2.0), limit=(20, 0.02))
  assert_values(config, STEPS, lambda t: 2.0 * 0.01 ** _ratio(t, 5, 20))


def test_continuous():
  config = schedules.ContinuousSchedule.config(
    initial_value=3.0, start_step=5, half_life_steps=5, min=0.1
  )
  assert_values(
    config,
    STEPS,
    lambda t: 3.0 * max(0.1, 0.5 ** (max(t - 5, 0) / 5)),
  )


def test_cosine():
  config = schedules.Cosine.config(
    initial_value=2.0, final_value=0.5, total_steps=20
  )
  assert_values(
    config,
    STEPS,
    lambda t: 0.5 + 0.75 * (1 + math.cos(math.pi * _ratio(t, 0, 20))),
  )


def test_cosine_that_cycles():
  config = schedules.Cosine.config(total_steps=10, cyclical=True)
  np.testing.assert_allclose(
    values(config, [0, 5, 9, 10, 15, 20]),
    [1.0, 0.5, (1 + math.cos(0.9 * math.pi)) / 2, 1.0, 0.5, 1.0],
    atol=1e-6,
  )
  config.half_cycle = False
  # At a million steps a float32 angle would be off by percents.
  np.testing.assert_allclose(
    values(config, [0, 5, 10, 15, 20, 20_000_010]),
    [1.0, 0.5, 0.0, 0.5, 1.0, 0.0],
    atol=1e-6,
  )


def test_delayed_cosine():
  config = schedules.DelayedCosine.config(start=(5, 2.0), limit=(20, 0.0))
  assert_values(
    config, STEPS, lambda t: 1 + math.cos(math.pi * _ratio(t, 5, 20))
  )


def test_sqrt_decay():
  config = schedules.SqrtDecay.config(decay_start=4, multiplier=3.0, offset=6.0)
  assert_values(config, STEPS, lambda t: 3.0 / math.sqrt(max(t - 6, 4)))


def test_transformer_matches_the_paper():
  """Vaswani et al. 2017, equation 3, whose step starts at 1."""
  config = schedules.Transformer.config(warmup_steps=100, model_dim=64)
  assert_values(
    config,
    [0, 1, 50, 98, 99, 100, 5000],
    lambda t: 64**-0.5 * min((t + 1) ** -0.5, (t + 1) * 100**-1.5),
  )
  # It is highest where the rise meets the fall.
  assert np.argmax(values(config, range(150))) == 99


@pytest.mark.parametrize(
  ('fields', 'step', 'want'),
  [
    # Two replicas: a warm-up of 8 steps.
    ({'worker_replicas': 2}, 3, 4 * 8**-1.5),
    ({'worker_replicas': 2}, 24, 25**-0.5),
    # The value is constant from step 24 on.
    ({'decay_end': 24}, 10**5, 25**-0.5),
    ({'decay_end': 24}, 15, 16**-0.5),
    ({'decay_factor': -0.25}, 80, 81**-0.25),
    ({'decay_factor': -0.25}, 1, 2 * 4**-1.25),
    ({'start_step': 5}, 10, 16**-0.5),
    ({'cyclical_step': 100}, 101, 2 * 4**-1.5),
    ({'worker_replicas': 0}, 0, 1.0),
    ({'worker_replicas': 0}, 3, 0.5),
  ],
)
def test_transformer_fields(fields, step, want):
  config = schedules.Transformer.config(warmup_steps=4, model_dim=1, **fields)
  assert_values(config, [step], lambda t: want)


@pytest.mark.parametrize(
  ('cls', 'fields', 'message'),
  [
    ('Polynomial', {'start': (1, 0.0)}, 'step 1 of start .* before step 1'),
    ('Linear', {'limit': (1, 2, 3)}, 'limit is .* a pair'),
    (
      'Polynomial',
      {'origin': 'end'},
      "'end'; expected one of 'start', 'limit'",
    ),
    ('Exponential', {'start': (0, 0.0)}, r'start\[1\] is 0.0; .* positive'),
    ('Exponential', {'limit': (0, 1.0)}, 'before step 0 of limit'),
    ('DelayedCosine', {'start': (0, -1.0)}, r'start\[1\] is -1.0'),
    ('DelayedCosine', {'limit': (1, -1.0)}, r'limit\[1\] is -1.0'),
    ('Cosine', {}, 'total_steps is 0; it must be positive'),
    ('ContinuousSchedule', {'min': 1.0}, r'min is 1.0; .* in \(0, 1\)'),
    ('ContinuousSchedule', {'half_life_steps': 0}, 'half_life_steps is 0'),
    ('SqrtDecay', {'decay_start': 0}, 'decay_start is 0; it must be positive'),
  ],
)
def test_mistakes(cls, fields, message):
  with pytest.raises(errors.UserError, match=f'{cls}: .*{message}'):
    getattr(schedules, cls).config(**fields).Instantiate()
