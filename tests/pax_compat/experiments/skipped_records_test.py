"""Tests of skipping damaged records in the inputs of an experiment."""

import pytest

from pax_compat import base_experiment, base_input, errors
from pax_compat.experiments import experiment_overrides
from pax_compat.inputs import multi_input
from pax_compat.nested_map import NestedMap


class Able(base_input.BaseInput):
  skip_bad_records: bool = False


class Unable(base_input.BaseInput):
  pass


class Experiment(base_experiment.BaseExperiment):
  """Has datasets that can skip records, and others."""

  TRAIN = Able.config(name='train', is_training=True)
  OTHER = Unable.config(name='other')

  def task(self):
    raise NotImplementedError

  def datasets(self):
    nested = multi_input.MultiInput.config(
      name='nested',
      input_to_params=NestedMap(a=Able.config(), b=Unable.config()),
    )
    return [self.TRAIN, self.OTHER, nested]

  def decode_datasets(self):
    return [self.OTHER]


class UnableExperiment(Experiment):
  def datasets(self):
    return [self.OTHER]


def _skipping(experiment):
  return experiment_overrides.changed(experiment, skip_bad_records=True)


def test_inputs_that_can_skip_records():
  experiment = _skipping(Experiment())
  train, other, nested = experiment.datasets()
  assert train.skip_bad_records
  assert nested.input_to_params['a'].skip_bad_records
  assert experiment.train_datasets() == [train]
  assert experiment.decode_datasets() == [other]
  assert not Experiment.TRAIN.skip_bad_records


def test_an_experiment_without_such_inputs_is_refused():
  experiment = _skipping(UnableExperiment())
  with pytest.raises(errors.UserError, match='none of the datasets other can'):
    experiment.datasets()
