"""Changes to the configs of an experiment from the command line.

`--set=path=value` sets fields of its configs, and `--skip_bad_records` makes
its inputs skip damaged records.
"""

import copy
import difflib
from collections.abc import Callable, Sequence
from typing import Any

from pax_compat import base_experiment, errors
from pax_compat import config as config_lib
from pax_compat.configs import config_overrides
from pax_compat.experiments import skipped_records, subclassed
from pax_compat.input_core import input_fields

# The roots of paths: the methods of an experiment that return configs.
_ROOTS = ('task', 'datasets', 'decode_datasets')


def changed(
  experiment: base_experiment.BaseExperiment,
  *,
  settings: Sequence[str] = (),
  skip_bad_records: bool = False,
) -> base_experiment.BaseExperiment:
  """Returns a copy of an experiment that returns changed configs.

  The class of the copy is a subclass, so that methods of the experiment use the
  changed datasets too, such as a `get_input_specs_provider_params` that calls
  `training_dataset`. Making dataset configs may take long or draw random
  numbers. So each method of the experiment is called once, and all callers get
  copies of the result.

  Args:
    experiment: the experiment. It is not changed.
    settings: strings such as `task.train.num_train_steps=100` or
      `datasets[0].batch_size=8`, applied in order.
    skip_bad_records: whether inputs skip damaged records, if they can.

  Raises:
    UserError: a setting does not begin with a root. The methods of the copy
      raise it if a path does not exist, a value is not valid for its field, or
      the experiment does not return a list of configs.
  """
  check(settings)
  cache: dict[str, list[config_lib.Config]] = {}

  def once(method: str, make: Callable) -> list[config_lib.Config]:
    if method not in cache:
      configs = make()
      _check_configs(configs, f'{type(experiment).__name__}.{method}() returns')
      cache[method] = _changed(configs, method, settings, skip_bad_records)
    return _copies(cache[method])

  class Changed(type(experiment)):
    """The experiment with changed configs."""

    def task(self):
      config = super().task()
      if not isinstance(config, config_lib.Config):
        raise errors.UserError(
          f'{type(experiment).__name__}.task() returns a {_kind(config)};'
          ' expected a config of a task, such as SingleTask.config()'
        )
      config_overrides.apply({'task': config}, _under('task', settings))
      return config

    def datasets(self):
      return once('datasets', super().datasets)

    def decode_datasets(self):
      return once('decode_datasets', super().decode_datasets)

  return subclassed.copied_as(Changed, experiment)


def _changed(
  configs: Sequence[config_lib.Config],
  method: str,
  settings: Sequence[str],
  skip_bad_records: bool,
) -> list[config_lib.Config]:
  """Returns changed copies of the configs that a method returned."""
  settings = _under(method, settings)
  if settings or skip_bad_records:  # These change nested configs too.
    configs = [config.clone() for config in configs]
  configs = _copies(configs)
  if skip_bad_records:
    skipped_records.set_in(configs, required=method == 'datasets')
  config_overrides.apply({method: configs}, settings)
  for config in configs:
    input_fields.give_name(config)
  return configs


def check(settings: Sequence[str]):
  """Raises a UserError for a setting that does not begin with a root."""
  for setting in settings:
    if _root(setting) not in _ROOTS:
      path = setting.partition('=')[0].strip()
      near = difflib.get_close_matches(_root(setting), _ROOTS, 1)
      better = path.replace(_root(setting), near[0], 1) if near else None
      raise errors.UserError(
        f'{setting}: expected a path that begins with {", ".join(_ROOTS)}; did'
        f' you mean: {better or f"task.{path}"}?'
      )


def _under(root: str, settings: Sequence[str]) -> list[str]:
  """Returns the settings of a root."""
  return [setting for setting in settings if _root(setting) == root]


def _root(setting: str) -> str:
  path = setting.partition('=')[0].strip()
  return path.partition('.')[0].partition('[')[0]


def _check_configs(configs: Any, message: str):
  """Raises a UserError, prefixed by `message`, unless it is a config list."""
  wanted = 'expected a list of configs, such as [MyInput.HParams()]'
  if not isinstance(configs, (list, tuple)):
    raise errors.UserError(f'{message} a {_kind(configs)}; {wanted}')
  for one in configs:
    if not isinstance(one, config_lib.Config):
      raise errors.UserError(f'{message} a list with a {_kind(one)}; {wanted}')


def _copies(configs: Sequence[config_lib.Config]) -> list[config_lib.Config]:
  return [copy.copy(config) for config in configs]


def _kind(value: Any) -> str:
  """Returns a description of the type of a value."""
  if isinstance(value, type):
    return f'class {value.__name__}'
  if isinstance(value, config_lib.Config):
    return f'config of {config_lib.class_name(value)}'
  return type(value).__name__
