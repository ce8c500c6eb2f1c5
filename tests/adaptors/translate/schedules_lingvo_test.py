"""Schedules of the framework against Lingvo's, run for real."""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import schedules
from tests.adaptors.translate import lingvo_steps

# Around every boundary that a case below has, and far beyond.
STEPS = [
  *range(0, 13),
  *range(18, 23),
  *range(38, 43),
  *range(58, 63),
  99,
  100,
  101,
  4_000,
  100_000,
]


def _lingvo(name, **fields):
  module = lingvo_runtime.module('lingvo.core.schedule')
  return getattr(module, name).Params().Set(**fields)


def _assert_same(ours, theirs):
  schedule = ours.Instantiate()
  values = [schedule.value_at(jnp.int32(step)) for step in STEPS]
  np.testing.assert_allclose(
    values, lingvo_steps.schedule_values(theirs, STEPS), rtol=2e-5, atol=1e-7
  )


SAME_FIELDS = [
  (schedules.Constant, 'Constant', {'value': 0.3}),
  (
    schedules.Polynomial,
    'PolynomialSchedule',
    {'power': 2, 'start': (10, 3.0), 'limit': (60, 0.5)},
  ),
  (
    schedules.Polynomial,
    'PolynomialSchedule',
    {'power': 3, 'start': (0, 0.5), 'limit': (40, 2.0), 'origin': 'limit'},
  ),
  (
    schedules.Linear,
    'LinearSchedule',
    {'start': (5, 0.0), 'limit': (20, 1.0)},
  ),
  (
    schedules.Exponential,
    'ExponentialSchedule',
    {'start': (10, 2.0), 'limit': (60, 0.02)},
  ),
  (schedules.Cosine, 'CosineSchedule', {'total_steps': 40}),
  (
    schedules.Cosine,
    'CosineSchedule',
    {'total_steps': 20, 'initial_value': 3.0, 'final_value': 0.5},
  ),
  (schedules.Cosine, 'CosineSchedule', {'total_steps': 20, 'cyclical': True}),
  (
    schedules.Cosine,
    'CosineSchedule',
    {'total_steps': 20, 'cyclical': True, 'half_cycle': False},
  ),
  (
    schedules.PiecewiseConstant,
    'PiecewiseConstantSchedule',
    {'boundaries': [10, 20, 60], 'values': [0.0, 5.0, -1.0, 0.25]},
  ),
  (
    schedules.ContinuousSchedule,
    'ContinuousSchedule',
    {
      'initial_value': 3.0,
      'start_step': 10,
      'half_life_steps': 10,
      'min': 0.1,
    },
  ),
  (schedules.Transformer, 'TransformerSchedule', {}),
  (
    schedules.Transformer,
    'TransformerSchedule',
    {'warmup_steps': 7, 'model_dim': 32, 'worker_replicas': 3},
  ),
  (
    schedules.Transformer,
    'TransformerSchedule',
    {'warmup_steps': 5, 'decay_end': 60, 'cyclical_step': 100},
  ),
  (
    schedules.Transformer,
    'TransformerSchedule',
    {'warmup_steps': 5, 'decay_factor': -0.7, 'start_step': 20},
  ),
  (schedules.Transformer, 'TransformerSchedule', {'warmup_steps': 0}),
  (
    schedules.LinearRampupSqrtDecay,
    'LinearRampupSqrtDecay',
    {'peak': 2.0, 'warmup_steps': 20},
  ),
]


@pytest.mark.parametrize('cls,name,fields', SAME_FIELDS)
def test_same_fields(cls, name, fields):
  _assert_same(cls.config(**fields), _lingvo(name, **fields))


def test_sqrt_decay():
  _assert_same(
    schedules.SqrtDecay.config(decay_start=20, multiplier=3.0, offset=38.5),
    _lingvo('SqrtDecay', warmup_steps=20, multiplier=3.0, offset=38.5),
  )


@pytest.mark.parametrize('warmup_init', [0.0, 0.25])
def test_linear_rampup_exponential_decay(warmup_init):
  steps = {'decay_start': 40, 'decay_end': 60, 'warmup_init': warmup_init}
  _assert_same(
    schedules.LinearRampupExponentialDecay.config(
      warmup_steps=10, max=1.0, min_ratio=0.05, **steps
    ),
    _lingvo('LinearRampupExponentialDecay', warmup=10, min=0.05, **steps),
  )


@pytest.mark.parametrize('values', [[1.0, 0.5, 0.1], [0.5, 1.0, 0.1]])
def test_linear_rampup_piecewise_constant(values):
  boundaries = [10, 20, 60]
  _assert_same(
    schedules.LinearRampupPiecewiseConstant.config(
      boundaries=boundaries, values=values, capped=True
    ),
    _lingvo(
      'LinearRampupPiecewiseConstantSchedule',
      boundaries=boundaries,
      lrs=values,
      num_splits=1,
    ),
  )


def test_piecewise_schedule():
  _assert_same(
    schedules.PiecewiseSchedule.config(
      boundaries=[10, 40],
      schedules=[
        schedules.Linear.config(start=(0, 0.0), limit=(10, 1.0)),
        schedules.Cosine.config(total_steps=20, final_value=0.5),
        schedules.SqrtDecay.config(decay_start=20),
      ],
    ),
    _lingvo(
      'PiecewiseSchedule',
      boundaries=[10, 40],
      schedules=[
        _lingvo('LinearSchedule', start=(0, 0.0), limit=(10, 1.0)),
        _lingvo('CosineSchedule', total_steps=20, final_value=0.5),
        _lingvo('SqrtDecay', warmup_steps=20),
      ],
    ),
  )


@pytest.mark.parametrize('absolute', [True, False])
def test_cycle_schedule(absolute):
  _assert_same(
    schedules.CycleSchedule.config(
      steps=[5, 15, 20],
      pass_absolute_step=absolute,
      schedules=[
        schedules.Constant.config(value=2.0),
        schedules.Linear.config(start=(0, 1.0), limit=(60, 0.0)),
        schedules.Exponential.config(start=(0, 1.0), limit=(100, 0.1)),
      ],
    ),
    _lingvo(
      'CycleSchedule',
      steps=[5, 15, 20],
      pass_absolute_step=absolute,
      schedules=[
        _lingvo('Constant', value=2.0),
        _lingvo('LinearSchedule', start=(0, 1.0), limit=(60, 0.0)),
        _lingvo('ExponentialSchedule', start=(0, 1.0), limit=(100, 0.1)),
      ],
    ),
  )
