"""Tests of the options of native experiments."""

import pytest

from pax_compat import (
  base_experiment,
  base_input,
  errors,
  experiment_registry,
  experiment_sources,
)
from pax_compat.experiments import native_options
from pax_compat.inputs import multi_input
from pax_compat.nested_map import NestedMap


class Reader(base_input.BaseInput):
  tfds_data_dir: str | None = None


class Other(base_input.BaseInput):
  pass


class Experiment(base_experiment.BaseExperiment):
  """Has inputs that read TFDS, and others."""

  def task(self):
    raise NotImplementedError

  def datasets(self):
    nested = multi_input.MultiInput.config(
      name='nested', input_to_params=NestedMap(a=Reader.config())
    )
    train = Reader.config(name='train', is_training=True)
    return [train, Other.config(name='other'), nested]

  def decode_datasets(self):
    return [Reader.config(name='decoded')]


class OtherExperiment(Experiment):
  def datasets(self):
    return [Other.config(name='other')]


def _find(cls, folder):
  experiment_registry.register(cls, allow_overwrite=True)
  options = native_options.NativeOptions(tfds_data_dir=folder)
  return experiment_sources.find(
    f'{cls.__module__}.{cls.__qualname__}',
    experiment_sources.SourceOptions(own=(options,)),
  )


def test_inputs_read_the_folder_of_the_flag():
  experiment = _find(Experiment, '/data')
  train, other, nested = experiment.datasets()
  [decoded] = experiment.decode_datasets()
  assert train.tfds_data_dir == decoded.tfds_data_dir == '/data'
  assert nested.input_to_params.a.tfds_data_dir == '/data'
  assert not hasattr(other, 'tfds_data_dir')
  assert type(experiment).__name__ == 'Experiment'
  assert type(_find(Experiment, None)) is Experiment


def test_an_experiment_without_such_inputs():
  experiment = _find(OtherExperiment, '/data')
  with pytest.raises(
    errors.UserError, match='none of the datasets other is a SeqIO input'
  ):
    experiment.datasets()
