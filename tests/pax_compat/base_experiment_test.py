"""Tests of experiments as such."""

import doctest

import pytest

from pax_compat import base_experiment, base_input, errors, tasks_lib


class Mine(base_experiment.BaseExperiment):
  EVALS = ('dev', 'test')

  def task(self):
    return tasks_lib.SingleTask.config()

  def datasets(self):
    names = ('train', *self.EVALS)
    return [
      base_input.BaseInput.config(name=n, is_training=n == 'train')
      for n in names
    ]


def test_the_example():
  names = {'base_input': base_input, 'tasks_lib': tasks_lib}
  found = doctest.testmod(base_experiment, extraglobs=names)
  assert found.attempted > 0 and found.failed == 0


def test_datasets_by_their_use():
  assert [d.name for d in Mine().train_datasets()] == ['train']
  assert [d.name for d in Mine().eval_datasets()] == ['dev', 'test']


def test_the_training_dataset():
  assert Mine().training_dataset().name == 'train'

  class Two(Mine):
    def datasets(self):
      return 2 * super().datasets()

  with pytest.raises(errors.UserError, match='Two.* 2 training datasets'):
    Two().training_dataset()


def test_both_names_of_the_datasets_to_decode():
  class Decoded(Mine):
    def decoder_datasets(self):
      return self.eval_datasets()

  assert [d.name for d in Decoded().decode_datasets()] == ['dev', 'test']


@pytest.mark.parametrize(
  'name',
  [
    *('partitioner', 'executor'),
    *('train_programs', 'eval_programs', 'decode_programs'),
  ],
)
def test_unsupported_methods_are_refused(name):
  derived = type('Derived', (Mine,), {name: lambda self: None})
  with pytest.raises(errors.UserError, match=f'Derived.{name} is not suppor'):
    derived().check_supported()
  Mine().check_supported()


def test_a_derived_experiment_changes_a_setting_by_assigning_it():
  class Derived(Mine):
    EVALS = ('dev',)

  assert [d.name for d in Derived().eval_datasets()] == ['dev']
  assert Derived().dumps() == {}
  assert Derived().decode_datasets() == []
  assert Derived().get_input_specs_provider_params() is None
  assert Derived().validate() is None


def test_task_and_datasets_must_be_written():
  class Half(base_experiment.BaseExperiment):
    def task(self):
      return tasks_lib.SingleTask.config()

  with pytest.raises(TypeError, match='datasets'):
    Half()
