"""Translated schedules against Lingvo's own, run for real."""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import schedules
from tests.adaptors.translate import lingvo_steps, parity

# Around every boundary that a case below has, and far beyond.
_STEPS = [*range(13), *range(18, 23), *range(38, 43), *range(58, 63)]
_FAR = [99, 100, 101, 4_000, 100_000]


def _lingvo(name, **fields):
  module = lingvo_runtime.module('lingvo.core.schedule')
  return getattr(module, name).Params().Set(**fields)


def _assert_same(params, steps=(*_STEPS, *_FAR)):
  """Compares a schedule with its translation; returns the config."""
  config = parity.translate(params)
  schedule = config.Instantiate()
  np.testing.assert_allclose(
    [schedule.value_at(jnp.int32(step)) for step in steps],
    lingvo_steps.schedule_values(params, steps),
    rtol=2e-5,
    atol=1e-7,
  )
  return config


_CASES = [
  ('Constant', {'value': 0.3}),
  ('ConstantOne', {}),
  (
    'PiecewiseConstantSchedule',
    {'boundaries': [10, 20, 60], 'values': [0.0, 5.0, -1.0, 0.25]},
  ),
  ('PiecewiseConstantSchedule', {'boundaries': [], 'values': [1.0]}),
  (
    'ContinuousSchedule',
    {'initial_value': 3.0, 'start_step': 10, 'half_life_steps': 10, 'min': 0.1},
  ),
  (
    'PolynomialSchedule',
    {'power': 2, 'start': (10, 3.0), 'limit': (60, 0.5)},
  ),
  (
    'PolynomialSchedule',
    {'power': 3, 'start': (0, 0.5), 'limit': (40, 2.0), 'origin': 'limit'},
  ),
  ('LinearSchedule', {'start': (5, 0.0), 'limit': (20, 1.0)}),
  ('LinearSchedule', {'start': (5, 0.0), 'limit': (20, 1.0), 'power': 2}),
  ('LinearRampupDecaySchedule', {'peak': 10, 'end': 40}),
  ('AnnealingSchedule', {'init': 1.0, 'lower_bound': 0.1, 'factor': 0.95}),
  ('AnnealingSchedule', {'init': 1.0, 'lower_bound': 0.1, 'factor': 1.0}),
  ('AnnealingSchedule', {'init': 1.0, 'lower_bound': 1.5, 'factor': 0.5}),
  ('ExponentialSchedule', {'start': (10, 2.0), 'limit': (60, 0.02)}),
  ('StepwiseExponentialSchedule', {'decay': 0.5, 'num_steps_per_decay': 20}),
  ('TransformerSchedule', {}),
  (
    'TransformerSchedule',
    {'warmup_steps': 7, 'model_dim': 32, 'worker_replicas': 3},
  ),
  (
    'TransformerSchedule',
    {'warmup_steps': 5, 'decay_end': 60, 'cyclical_step': 100},
  ),
  (
    'TransformerSchedule',
    {'warmup_steps': 5, 'decay_factor': -0.7, 'start_step': 20},
  ),
  ('TransformerMLPerfSchedule', {'warmup_steps': 20, 'model_dim': 64}),
  (
    'TransformerMLPerfSchedule',
    {'warmup_steps': 20, 'warmup_init_fraction': 0.25},
  ),
  ('TransformerScheduleNoWarmUp', {'decay_start': 20, 'model_dim': 64}),
  (
    'TransformerScheduleNoWarmUp',
    {'decay_start': 10, 'worker_replicas': 2, 'decay_end': 60},
  ),
  ('TransformerScheduleNoWarmUp', {'decay_start': 40, 'decay_end': 20}),
  (
    'LinearRampupExponentialDecay',
    {'warmup': 10, 'decay_start': 40, 'decay_end': 60, 'min': 0.05},
  ),
  (
    'LinearRampupExponentialDecay',
    {'warmup': 0, 'decay_start': 40, 'decay_end': 60},
  ),
  (
    'LinearRampupExponentialDecay',
    {
      'warmup': 10,
      'warmup_init': 0.25,
      'decay_start': 5,
      'decay_end': 6,
      'max': 0.75,
    },
  ),
  (
    'LinearRampupExponentialDecayScaledByNumSplitSchedule',
    {'warmup': 5, 'decay_start': 80, 'decay_end': 120, 'num_splits': 2},
  ),
  (
    'LinearRampupExponentialDecayScaledByNumSplitSchedule',
    {'warmup': 10, 'decay_start': 40, 'decay_end': 60, 'warmup_init': 3.0},
  ),
  (
    'LinearRampupExponentialDecayScaledByNumSplitSchedule',
    {'warmup': 10, 'decay_start': 40, 'decay_end': 60, 'min': 2.0, 'max': 4.0},
  ),
  ('LinearRampupSqrtDecay', {'peak': 2.0, 'warmup_steps': 20}),
  (
    'LinearRampupSqrtDecayByBatchSizeAndReplicas',
    {'warmup_examples': 100, 'batch_size': 2, 'num_replicas': 3},
  ),
  (
    'LinearRampupSqrtDecayByBatchSizeAndReplicas',
    {'warmup_examples': 100, 'batch_size': 2},
  ),
  (
    'LinearRampupPiecewiseConstantSchedule',
    {'boundaries': [20, 40, 120], 'lrs': [0.5, 1.0, 0.1], 'num_splits': 2},
  ),
  (
    'LinearRampupPiecewiseConstantSchedule',
    {'boundaries': [10, 20, 60], 'lrs': [1.0, 0.5, 0.1]},
  ),
  (
    'LinearRampupCosineSchedule',
    {'warmup_steps': 10, 'total_steps': 60, 'final_value': 0.1},
  ),
  (
    'LinearRampupCosineSchedule',
    {
      'warmup_init': 0.5,
      'warmup_steps': 20,
      'initial_value': 2.0,
      'total_steps': 120,
      'cyclical': True,
      'num_splits': 2,
    },
  ),
  (
    'LinearRampupCosineSchedule',
    {'warmup_steps': 10, 'total_steps': 40, 'num_splits': 0},
  ),
  ('EmaDecaySchedule', {'ema_decay': 0.9}),
  ('CosineSchedule', {'total_steps': 40}),
  (
    'CosineSchedule',
    {'total_steps': 20, 'initial_value': 3.0, 'final_value': 0.5},
  ),
  ('CosineSchedule', {'total_steps': 20, 'cyclical': True}),
  (
    'CosineSchedule',
    {'total_steps': 20, 'cyclical': True, 'half_cycle': False},
  ),
  ('SqrtDecay', {'warmup_steps': 20, 'multiplier': 3.0, 'offset': 38.5}),
  (
    'SqrtDecayToZero',
    {'warmup_steps': 20.0, 'starting_lr': 0.5, 'final_steps': 100.0},
  ),
  ('InverseSigmoid', {'k': 20.0}),
]


@pytest.mark.parametrize('name,fields', _CASES)
def test_same_values(name, fields):
  _assert_same(_lingvo(name, **fields))


def test_piecewise_schedule():
  _assert_same(
    _lingvo(
      'PiecewiseSchedule',
      boundaries=[10, 40],
      schedules=[
        _lingvo('LinearSchedule', start=(0, 0.0), limit=(10, 1.0)),
        _lingvo('CosineSchedule', total_steps=20, final_value=0.5),
        _lingvo(
          'CycleSchedule',
          schedules=[_lingvo('Constant'), _lingvo('SqrtDecay', warmup_steps=5)],
          steps=[3, 4],
        ),
      ],
    )
  )


@pytest.mark.parametrize('absolute', [True, False])
def test_cycle_schedule(absolute):
  _assert_same(
    _lingvo(
      'CycleSchedule',
      steps=[5, 15, 20],
      pass_absolute_step=absolute,
      schedules=[
        _lingvo('Constant', value=2.0),
        _lingvo('LinearSchedule', start=(0, 1.0), limit=(60, 0.0)),
        _lingvo('ExponentialSchedule', start=(0, 1.0), limit=(100, 0.1)),
      ],
    )
  )


def test_combined_minimum_schedule():
  _assert_same(
    _lingvo(
      'CombinedMinimumSchedule',
      schedules=[
        _lingvo('LinearSchedule', start=(0, 0.0), limit=(20, 2.0)),
        _lingvo('SqrtDecay', warmup_steps=5, multiplier=4.0),
        _lingvo('Constant', value=0.9),
      ],
    )
  )


def test_every_schedule_of_lingvo_is_translated_or_refused():
  module = lingvo_runtime.module('lingvo.core.schedule')
  known = {name for name, _ in _CASES}
  known |= {'PiecewiseSchedule', 'CycleSchedule', 'CombinedMinimumSchedule'}
  known |= {'BaseSchedule', 'DevBasedSchedule'}
  assert known == {
    name
    for name, cls in vars(module).items()
    if isinstance(cls, type) and issubclass(cls, module.BaseSchedule)
  }


def test_the_same_classes_as_in_pax_where_there_is_one():
  config = _assert_same(_lingvo('LinearSchedule', limit=(10, 2.0)), [0, 5, 20])
  assert isinstance(config.Instantiate(), schedules.Polynomial)
  config = _assert_same(
    _lingvo('LinearRampupExponentialDecay', warmup=10), [0, 5, 20]
  )
  assert isinstance(
    config.Instantiate(), schedules.LinearRampupExponentialDecay
  )


@pytest.mark.parametrize(
  'name,fields,message',
  [
    ('DevBasedSchedule', {'window': 0}, 'window'),
    ('AnnealingSchedule', {'lower_bound': 0.1, 'factor': 2.0}, 'factor'),
    ('LinearRampupSqrtDecayByBatchSizeAndReplicas', {}, 'batch_size'),
    ('Constant', {'random_seed': 3}, 'random_seed'),
  ],
)
def test_what_is_refused(name, fields, message):
  (issue,) = parity.issues_of(_lingvo(name, **fields))
  assert f'lingvo.core.schedule.{name}' in issue and message in issue


def test_pieces_in_a_cycle_are_refused():
  """Lingvo asks their parts at the cycle's step, from which nobody counts."""
  pieces = _lingvo(
    'PiecewiseSchedule',
    boundaries=[3],
    schedules=[_lingvo('Constant'), _lingvo('SqrtDecay')],
  )
  hidden = _lingvo('CombinedMinimumSchedule', schedules=[pieces])
  for part in (pieces, hidden):
    (issue,) = parity.issues_of(
      _lingvo('CycleSchedule', schedules=[part], steps=[10])
    )
    assert 'layer.schedules[0]' in issue and 'PiecewiseSchedule' in issue


def test_pieces_of_a_subclass_in_a_cycle_are_refused():
  module = lingvo_runtime.module('lingvo.core.schedule')

  class Steps(module.PiecewiseSchedule):
    """The same under another name."""

  class PiecewiseSchedule(module.Constant):
    """Another class of the same name."""

  pieces = Steps.Params().Set(
    boundaries=[3], schedules=[_lingvo('Constant'), _lingvo('SqrtDecay')]
  )
  (issue,) = parity.issues_of(
    _lingvo('CycleSchedule', schedules=[pieces], steps=[10])
  )
  assert 'layer.schedules[0]' in issue and 'PiecewiseSchedule' in issue
  same_name = PiecewiseSchedule.Params()
  cycle = _lingvo('CycleSchedule', schedules=[same_name], steps=[10])
  assert not parity.issues_of(cycle)


def test_parts_that_cannot_be_translated_are_named():
  (issue,) = parity.issues_of(
    _lingvo(
      'CombinedMinimumSchedule',
      schedules=[
        _lingvo('Constant'),
        _lingvo('DevBasedSchedule', random_seed=3),
      ],
    )
  )
  assert 'layer.schedules[1].random_seed' in issue
  assert '(lingvo.core.schedule.DevBasedSchedule)' in issue
