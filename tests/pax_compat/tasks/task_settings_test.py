"""Tests of the settings of tasks."""

import re

import pytest

from pax_compat import errors, learners
from pax_compat.tasks import task_settings

REFUSED = [
  (cls, name)
  for cls in (task_settings.Train, task_settings.Infer)
  for name in cls.REFUSED
]


@pytest.mark.parametrize(('cls', 'name'), REFUSED)
def test_unsupported_fields_are_refused_by_name(cls, name):
  value = {
    'always_use_train_for_model_init': False,
    'random_seed': 7,
  }.get(name, 'something')
  config = cls.config(**{name: value})
  refusal = (
    rf'{cls.__name__}\.{name} is .*{value!r}?.*not supported: \w+.*expect'
  )
  with pytest.raises(errors.UserError, match=refusal):
    config.Instantiate()


@pytest.mark.parametrize(
  'cls',
  [
    task_settings.Train,
    task_settings.Evaluate,
    task_settings.Decode,
    task_settings.Infer,
    task_settings.VariationalNoise,
  ],
)
def test_defaults_are_accepted(cls):
  assert type(cls.config().Instantiate()) is cls


@pytest.mark.parametrize(
  ('text', 'seconds'),
  [('12h', 43200), ('90m', 5400), ('1d12h', 129600), ('45s', 45), (None, None)],
)
def test_durations(text, seconds):
  train = task_settings.Train.config(save_keep_interval_duration=text)
  assert train.Instantiate().keep_interval_seconds() == seconds


@pytest.mark.parametrize('text', ['', '12', 'h', '12 hours', '1m1h', 43200])
def test_invalid_durations(text):
  train = task_settings.Train.config(save_keep_interval_duration=text)
  with pytest.raises(
    errors.UserError, match=r"Train.save_keep_interval_duration is .* '90m'"
  ):
    train.Instantiate()


def test_steps_may_be_whole_floats():
  train = task_settings.Train.config(num_train_steps=1e7).Instantiate()
  assert train.num_train_steps == 10_000_000
  assert isinstance(train.num_train_steps, int)


@pytest.mark.parametrize(
  ('name', 'value', 'least'),
  [
    ('num_train_steps', 0, 1),
    ('num_train_steps', 1.5, 1),
    ('summary_interval_steps', 0, 1),
    ('save_max_to_keep', -1, 1),
    ('eval_interval_steps', -1, 0),
    ('gc_interval_steps', True, 0),
    ('max_inflight_steps', -2, 0),
    ('summary_interval_steps', None, 1),
    ('num_train_steps', 'many', 1),
    ('num_train_steps', float('inf'), 1),
    ('save_interval_steps', [5], 1),
  ],
)
def test_invalid_numbers(name, value, least):
  train = task_settings.Train.config(**{name: value})
  with pytest.raises(
    errors.UserError,
    match=re.escape(
      f'Train.{name} is {value!r}; expected a whole number of at least {least}'
    ),
  ):
    train.Instantiate()


def test_fields_that_may_be_none():
  train = task_settings.Train.config(save_interval_steps=None).Instantiate()
  assert train.save_interval_steps is None
  train = task_settings.Train.config(save_interval_steps='5')
  with pytest.raises(errors.UserError, match='at least 1, or None$'):
    train.Instantiate()


def test_a_seed_is_any_whole_number():
  assert task_settings.Evaluate(random_seed=-7).random_seed == -7
  with pytest.raises(errors.UserError, match='seed is None; .* whole number$'):
    task_settings.Evaluate(random_seed=None)


def test_accumulate_interval_divides_summary_interval():
  train = task_settings.Train.config(
    summary_interval_steps=10, summary_accumulate_interval_steps=4
  )
  with pytest.raises(errors.UserError, match='accumulate.* is 4; .* divides'):
    train.Instantiate()
  train.summary_accumulate_interval_steps = 5
  train.Instantiate()


def test_several_learners_are_refused():
  train = task_settings.Train.config(learner=[learners.Learner.config()] * 2)
  with pytest.raises(errors.UserError, match='2 learners; .*MultiOptimizer'):
    train.Instantiate()


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(vn_scale=-0.1), 'vn_scale is -0.1; expected 0 or more'),
    (dict(vn_scale=float('nan')), 'vn_scale is nan'),
    (dict(vn_regex='('), r"vn_regex: '\(' is not a regular expression"),
    (dict(vn_start_step=-1), 'vn_start_step is -1'),
  ],
)
def test_invalid_noise(fields, message):
  config = task_settings.VariationalNoise.config(**fields)
  with pytest.raises(errors.UserError, match=message):
    config.Instantiate()


@pytest.mark.parametrize('saved', [None, 2])
def test_steps_that_are_kept_must_be_saved(saved):
  train = task_settings.Train.config(
    save_keep_interval_steps=3, save_interval_steps=saved
  )
  with pytest.raises(
    errors.UserError, match='is 3; expected a multiple of save_interval_steps'
  ):
    train.Instantiate()


def test_more_steps_than_can_be_counted():
  with pytest.raises(errors.UserError, match=r'expected less than 2\*\*31'):
    task_settings.Train.config(num_train_steps=1 << 31).Instantiate()


@pytest.mark.parametrize('interval', [None, 10])
def test_a_field_without_effect_is_logged(caplog, interval):
  train = task_settings.Train.config(device_sync_interval_steps=interval)
  with caplog.at_level('INFO'):
    train.Instantiate()
  assert ('device_sync_interval_steps has no effect' in caplog.text) == (
    interval is not None
  )
