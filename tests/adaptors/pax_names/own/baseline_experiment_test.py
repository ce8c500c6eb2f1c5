"""Experiments of `paxml.experimental`: settings, and the config they make."""

import dataclasses

import pytest

from adaptors.pax_names.own import baseline_experiment
from pax_compat import tasks_lib
from pax_compat.config import Config, InvalidConfigError
from pax_compat.experiments import parameterized_experiment


@dataclasses.dataclass
class Small(baseline_experiment.BaselineExperiment):
  layers: int = 2

  def experiment_fixture(self):
    return Config(
      parameterized_experiment.ParameterizedExperiment,
      task=tasks_lib.SingleTask.config(name=f'layers_{self.layers}'),
    )


def test_settings_make_an_experiment():
  made = Small.make_experiment(layers=3)
  assert isinstance(made, parameterized_experiment.ParameterizedExperiment)
  assert made.task().name == 'layers_3'


def test_settings_are_fields_of_a_config():
  config = Small.highlevel_config()
  config.layers = 4
  assert config.Instantiate().task().name == 'layers_4'
  low = baseline_experiment.lower(config)
  low.task.name += '_changed'
  assert low.Instantiate().task().name == 'layers_4_changed'
  assert Small.lowlevel_config(layers=5).task.name == 'layers_5'


def test_other_configs_are_not_lowered():
  with pytest.raises(InvalidConfigError, match='that highlevel_config of'):
    baseline_experiment.lower(Small.lowlevel_config())


def test_a_dict_as_a_nested_map():
  assert baseline_experiment.make_nested_map({'a': 1}).a == 1
