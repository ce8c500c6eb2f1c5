"""Tests of experiments as such."""

import pytest

from pax_compat import base_experiment, base_input, tasks_lib


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


def test_datasets_are_told_apart_by_their_use():
  assert [d.name for d in Mine().train_datasets()] == ['train']
  assert [d.name for d in Mine().eval_datasets()] == ['dev', 'test']


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
