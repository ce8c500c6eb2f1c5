"""Schedules with a warm-up, against their formulas."""

import math

import pytest

from pax_compat import errors, schedules
from tests.pax_compat.schedules.values import assert_values

STEPS = [0, 1, 4, 5, 6, 9, 10, 11, 15, 19, 20, 21, 25, 10**6]
RAMP = {'warmup_steps': 5, 'decay_start': 10, 'decay_end': 20}
MAX, RATIO = 2.0, 0.1


def _decay(name, power=1):
  """Returns the formula of a decay from MAX, r being the progress in [0, 1]."""
  low = MAX * RATIO
  return {
    'LinearRampupPolynomialDecay': lambda r: MAX - r**power * (MAX - low),
    'LinearRampupExponentialDecay': lambda r: MAX * RATIO**r,
    'LinearRampupCosineDecay': lambda r: (
      low + (MAX - low) * (1 + math.cos(math.pi * r)) / 2
    ),
  }[name]


DECAYS = [
  ('LinearRampupPolynomialDecay', {'power': 2}),
  ('LinearRampupExponentialDecay', {}),
  ('LinearRampupCosineDecay', {}),
]


def _formula(decay, warmup_steps, decay_start, decay_end):
  def formula(t):
    if t < warmup_steps:
      return MAX * t / warmup_steps
    if t < decay_start:
      return MAX
    if t >= decay_end:
      return MAX * RATIO
    return decay((t - decay_start) / (decay_end - decay_start))

  return formula


@pytest.mark.parametrize('name,fields', DECAYS)
@pytest.mark.parametrize(
  'ramp',
  [
    RAMP,
    {**RAMP, 'warmup_steps': 0},
    {**RAMP, 'warmup_steps': 10},
    {**RAMP, 'warmup_steps': 0, 'decay_start': 0},
    {**RAMP, 'decay_end': 10},
    {'warmup_steps': 5, 'decay_start': 5, 'decay_end': 5},
  ],
)
def test_ramps(name, fields, ramp):
  config = getattr(schedules, name).config(
    max=MAX, min_ratio=RATIO, **ramp, **fields
  )
  decay = _decay(name, fields.get('power', 1))
  assert_values(config, STEPS, _formula(decay, **ramp))


@pytest.mark.parametrize('name,fields', DECAYS)
def test_a_ramp_from_above_zero(name, fields):
  config = getattr(schedules, name).config(
    max=MAX, min_ratio=RATIO, warmup_init=0.5, **RAMP, **fields
  )
  assert_values(config, range(11), lambda t: min(0.5 + 0.3 * t, MAX))


def test_cosine_that_starts_later():
  config = schedules.LinearRampupCosineDecay.config(
    start_step=5, max=MAX, min_ratio=RATIO, **RAMP
  )
  formula = _formula(_decay('LinearRampupCosineDecay'), **RAMP)
  assert_values(config, STEPS, lambda t: 1.0 if t < 5 else formula(t - 5))


def test_sqrt_decay():
  config = schedules.LinearRampupSqrtDecay.config(peak=3.0, warmup_steps=10)
  assert_values(
    config,
    STEPS,
    lambda t: 3.0 * min(max(t, 1) / 10, math.sqrt(10 / max(t, 1))),
  )


@pytest.mark.parametrize('numbers', [[2.0, 1.0, 0.0], [1.0, 3.0, -1.0], [4.0]])
@pytest.mark.parametrize('capped', [False, True])
def test_piecewise_constant(numbers, capped):
  boundaries = [5, 10, 20][: len(numbers)]

  def formula(t):
    if t < 5:
      return numbers[0] * t / 5
    value = numbers[sum(t >= b for b in boundaries) - 1]
    return min(value, numbers[0]) if capped else value

  config = schedules.LinearRampupPiecewiseConstant.config(
    boundaries=boundaries, values=numbers, capped=capped
  )
  assert_values(config, STEPS, formula)


def test_piecewise_constant_without_a_rise():
  config = schedules.LinearRampupPiecewiseConstant.config(
    boundaries=[0, 10], values=[2.0, 1.0]
  )
  assert_values(config, STEPS, lambda t: 2.0 if t < 10 else 1.0)


@pytest.mark.parametrize(
  ('cls', 'fields', 'message'),
  [
    ('LinearRampupPolynomialDecay', RAMP, 'max is 0.0; it must be positive'),
    (
      'LinearRampupCosineDecay',
      {**RAMP, 'max': 1.0, 'warmup_steps': 11},
      'warmup_steps 11, decay_start 10 .* in this order',
    ),
    (
      'LinearRampupCosineDecay',
      {**RAMP, 'max': 1.0, 'start_step': -1},
      'start_step is -1; it must not be negative',
    ),
    (
      'LinearRampupExponentialDecay',
      {**RAMP, 'max': 1.0, 'min_ratio': 0.0},
      'min_ratio is 0.0; it must be positive',
    ),
    (
      'LinearRampupPolynomialDecay',
      {**RAMP, 'max': 1.0, 'decay_end': 9},
      'decay_end 9 must be in this order',
    ),
    ('LinearRampupSqrtDecay', {'warmup_steps': 0}, 'warmup_steps is 0'),
    (
      'LinearRampupPiecewiseConstant',
      {'boundaries': [], 'values': []},
      'boundaries is empty',
    ),
    (
      'LinearRampupPiecewiseConstant',
      {'boundaries': [1], 'values': [1, 2]},
      'values has 2 items; expected 1',
    ),
  ],
)
def test_mistakes(cls, fields, message):
  with pytest.raises(errors.UserError, match=f'{cls}: .*{message}'):
    getattr(schedules, cls).config(**fields).Instantiate()
