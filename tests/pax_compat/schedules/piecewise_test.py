"""Piecewise schedules against their pieces."""

import numpy as np
import pytest

from pax_compat import config as config_lib
from pax_compat import errors, schedules
from tests.pax_compat.schedules.values import assert_values, values

STEPS = [0, 1, 2, 9, 10, 11, 19, 20, 21, 35, 10**6]


@pytest.mark.parametrize(
  'numbers', [[1.0, 0.5, 0.1], [0.0, 5.0, 1.0], [-1.0, 0.0, 2.0]]
)
def test_piecewise_constant(numbers):
  config = schedules.PiecewiseConstant.config(
    boundaries=[10, 20], values=numbers
  )
  assert_values(config, STEPS, lambda t: numbers[int(t >= 10) + int(t >= 20)])


def test_one_piece():
  config = schedules.PiecewiseConstant.config(boundaries=[], values=[0.25])
  assert_values(config, STEPS, lambda t: 0.25)


def test_pieces_count_from_their_own_starts():
  config = schedules.PiecewiseSchedule.config(
    boundaries=[10, 20],
    schedules=[
      schedules.Linear.config(start=(0, 0.0), limit=(20, 2.0)),
      schedules.Constant.config(value=-1.0),
      schedules.SqrtDecay.config(decay_start=1),
    ],
  )

  def formula(t):
    if t < 10:
      return t / 10
    return -1.0 if t < 20 else 1 / np.sqrt(max(t - 20, 1))

  assert_values(config, STEPS, formula)


@pytest.mark.parametrize('absolute', [True, False])
def test_cycle(absolute):
  config = schedules.CycleSchedule.config(
    steps=[2, 3],
    pass_absolute_step=absolute,
    schedules=[
      schedules.Constant.config(value=7.0),
      schedules.Linear.config(start=(0, 0.0), limit=(1000, 1000.0)),
    ],
  )
  expected = [
    7.0 if t % 5 < 2 else float(t if absolute else t % 5) for t in range(13)
  ]
  assert_values(config, range(13), lambda t: expected[t])


def test_a_cycle_of_one():
  linear = schedules.Linear.config(start=(0, 0.0), limit=(100, 100.0))
  config = schedules.CycleSchedule.config(steps=[4], schedules=[linear])
  np.testing.assert_allclose(values(config, [0, 3, 4, 9]), [0, 3, 4, 9])


_ONE = schedules.Constant.config()


@pytest.mark.parametrize(
  ('cls', 'fields', 'message'),
  [
    (
      'PiecewiseConstant',
      {'boundaries': [2, 1], 'values': [1, 2, 3]},
      r'boundaries are \[2, 1\]; they must be sorted',
    ),
    (
      'PiecewiseConstant',
      {'boundaries': [1], 'values': [1]},
      'values has 1 items; expected 2',
    ),
    (
      'PiecewiseSchedule',
      {'boundaries': [-1], 'schedules': [_ONE, _ONE]},
      'not negative',
    ),
    (
      'PiecewiseSchedule',
      {'boundaries': [1], 'schedules': [_ONE]},
      'schedules has 1 items; expected 2',
    ),
    (
      'CycleSchedule',
      {'steps': [1], 'schedules': [_ONE, _ONE]},
      'schedules has 2 items; expected 1',
    ),
    (
      'CycleSchedule',
      {'steps': [1, 0], 'schedules': [_ONE, _ONE]},
      r'steps\[1\] is 0; it must be positive',
    ),
    ('CycleSchedule', {'steps': [], 'schedules': []}, 'at least one'),
  ],
)
def test_mistakes(cls, fields, message):
  with pytest.raises(errors.UserError, match=f'{cls}: .*{message}'):
    getattr(schedules, cls).config(**fields).Instantiate()


def test_pieces_are_required():
  with pytest.raises(config_lib.RequiredError, match='PiecewiseSchedule'):
    schedules.PiecewiseSchedule.config(boundaries=[1]).Instantiate()
