"""Tests of making the configs of an experiment once."""

import dataclasses

import pytest

from pax_compat import base_experiment, base_input, errors, tasks_lib
from pax_compat.experiments import resolved


class Asked(base_experiment.BaseExperiment):
  """Records the calls of its methods."""

  def __init__(self):
    self.calls = []

  def validate(self):
    self.calls.append('validate')

  def task(self):
    self.calls.append('task')
    return tasks_lib.SingleTask.config()

  def datasets(self):
    self.calls.append('datasets')
    return [
      base_input.BaseInput.config(name='train', is_training=True),
      base_input.BaseInput.config(name='dev'),
    ]

  def decode_datasets(self):
    self.calls.append('decode_datasets')
    return self.eval_datasets()

  def start(self):
    self.calls.append('start')

  def dumps(self):
    self.calls.append('dumps')
    return {'notes.txt': f'of {self.training_dataset().name}'}


def test_each_method_is_called_once():
  experiment = Asked()
  made = resolved.resolve(experiment, name='mine')
  # `start` is called for a new run only.
  expected = ['validate', 'datasets', 'decode_datasets', 'task', 'dumps']
  assert experiment.calls == expected
  assert made.name == 'mine'
  assert [d.name for d in made.datasets] == ['train', 'dev']
  assert [d.name for d in made.train_datasets] == ['train']
  assert [d.name for d in made.eval_datasets] == ['dev']
  assert [d.name for d in made.decode_datasets] == ['dev']
  assert made.dumps == {'notes.txt': 'of train'}
  assert made.get_input_specs_provider_params() is None
  assert made.start() is None
  assert experiment.calls == [*expected, 'start']


class Missing(base_input.BaseInput):
  """Lacks its files."""

  @classmethod
  def check_files(cls, params):
    raise errors.UserError(f'no files of {params.name}')


def test_files_are_missed_before_a_task_is_made():
  experiment = Asked()
  experiment.datasets = lambda: [
    Missing.config(name='train', is_training=True),
    Missing.config(name='dev'),
  ]
  with pytest.raises(errors.UserError, match='no files of train'):
    resolved.resolve(experiment, name='mine', trains=True)
  assert 'task' not in experiment.calls
  resolved.resolve(experiment, name='mine')  # To export it, for example.
  assert 'task' in experiment.calls


def test_it_has_the_changes_of_the_command_line():
  settings = ['task.train.num_train_steps=7', 'datasets[1].batch_size=4']
  made = resolved.resolve(Asked(), name='mine', settings=settings)
  assert made.task.train.num_train_steps == 7
  assert [d.batch_size for d in made.datasets] == [None, 4]
  assert [d.batch_size for d in made.decode_datasets] == [4]


def test_it_cannot_be_changed():
  made = resolved.resolve(Asked(), name='mine')
  with pytest.raises(dataclasses.FrozenInstanceError):
    made.name = 'other'


def test_an_experiment_chooses_the_datasets_to_evaluate():
  class Chosen(Asked):
    def eval_datasets(self):
      return []

  made = resolved.resolve(Chosen(), name='mine')
  assert [d.name for d in made.datasets] == ['train', 'dev']
  assert made.eval_datasets == ()


def test_an_experiment_is_validated_first():
  class Refusing(Asked):
    def validate(self):
      raise errors.UserError('B is as large as A')

  with pytest.raises(errors.UserError, match='B is as large as A'):
    resolved.resolve(Refusing(), name='mine', settings=['tsk.x=1'])

  class Unsupported(Asked):
    def partitioner(self):
      """Of Pax."""

  with pytest.raises(errors.UserError, match='partitioner is not supported'):
    resolved.resolve(Unsupported(), name='mine')


def test_a_task_that_is_not_a_config_is_refused():
  class Forgot(Asked):
    def task(self):
      self.calls.append('task')

  with pytest.raises(errors.UserError, match='Forgot.task.. returns a NoneT'):
    resolved.resolve(Forgot(), name='mine')


def test_class_attributes_are_changed():
  class Sized(Asked):
    SIZE = 3

    def task(self):
      return super().task().set(name=f'task{self.SIZE}')

  made = resolved.resolve(
    Sized(), name='mine', attributes=['SIZE=4'], settings=['task.name=a']
  )
  assert (made.task.name, made.experiment.SIZE) == ('a', 4)
  assert resolved.resolve(Sized(), name='mine').task.name == 'task3'
  [change, _] = made.changes
  assert change == '--attr=SIZE=4'
  with pytest.raises(errors.UserError, match='no class attribute .SIZ.'):
    resolved.resolve(Sized(), name='mine', attributes=['SIZ=4'])
