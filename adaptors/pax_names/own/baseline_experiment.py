"""Experiments with few settings and a full config: `paxml.experimental`.

@dataclasses.dataclass
class Small(BaselineExperiment):
  layers: int = 2

  def experiment_fixture(self):
    return pax_fiddle.Config(ParameterizedExperiment, task=..., ...)

config = Small.highlevel_config(layers=4)  # Has the field `layers`.
lower(config).task.train.num_train_steps = 10
"""

import abc
import copy
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from pax_compat.config import Config, InvalidConfigError
from pax_compat.experiments import parameterized_experiment
from pax_compat.nested_map import NestedMap

__all__ = ['BaselineExperiment', 'lower', 'make_nested_map']


@dataclasses.dataclass
class BaselineExperiment(abc.ABC):
  """A dataclass of settings, from which the config of an experiment is made."""

  @abc.abstractmethod
  def experiment_fixture(self) -> Config:
    """Returns the config of a `ParameterizedExperiment`."""

  @classmethod
  def make_experiment(
    cls, **settings: Any
  ) -> parameterized_experiment.ParameterizedExperiment:
    """Returns the experiment of these settings."""
    return cls(**settings).experiment_fixture().Instantiate()

  @classmethod
  def highlevel_config(cls, **settings: Any) -> Config:
    """Returns a config whose fields are the settings."""
    return Config(cls.make_experiment, **settings)

  @classmethod
  def lowlevel_config(cls, **settings: Any) -> Config:
    """Returns the config of the experiment of these settings."""
    return lower(cls.highlevel_config(**settings))


def lower(config: Config) -> Config:
  """Returns the config of the experiment that a config of settings makes.

  Args:
    config: of `BaselineExperiment.highlevel_config`.

  Raises:
    InvalidConfigError: it is another config.
  """
  maker = config.cls
  owner = maker.__self__ if inspect.ismethod(maker) else None
  if not (isinstance(owner, type) and issubclass(owner, BaselineExperiment)):
    raise InvalidConfigError(
      f'lower: the config is of {maker.__qualname__}; expected one that'
      ' highlevel_config of a BaselineExperiment returns'
    )
  settings = copy.deepcopy(config)
  settings.cls = owner
  return settings.Instantiate().experiment_fixture()


def make_nested_map(base: Mapping[str, Any]) -> NestedMap:
  """Returns a dict as a NestedMap."""
  return NestedMap(base)
