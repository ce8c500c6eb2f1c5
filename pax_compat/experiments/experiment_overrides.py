"""Changes that the command line makes to an experiment: `--set path=value`."""

from collections.abc import Callable, Sequence
from typing import Any

from pax_compat import base_experiment, errors
from pax_compat.configs import config_overrides

# What a path may begin with: the methods of an experiment that return configs.
_ROOTS = ('task', 'datasets', 'decode_datasets')


def override(
  experiment: base_experiment.BaseExperiment, settings: Sequence[str]
):
  """Makes an experiment return its configs with fields set.

  Args:
    experiment: the experiment. Its methods are replaced by ones that set the
      fields of what they return.
    settings: texts such as `task.train.num_train_steps=100` or
      `datasets[0].batch_size=8`, applied in order.

  Raises:
    UserError: a path does not exist, or a value is not what the field holds.
  """
  for setting in settings:
    if _root(setting) not in _ROOTS:
      raise errors.UserError(
        f'{setting}: expected a path that begins with {", ".join(_ROOTS)}'
        + errors.did_you_mean(_root(setting), _ROOTS)
      )
  for root in _ROOTS:
    own = [s for s in settings if _root(s) == root]
    if own:
      changed = _changed(getattr(experiment, root), root, own)
      changed()  # So that a mistake shows at once.
      setattr(experiment, root, changed)


def _root(setting: str) -> str:
  path = setting.partition('=')[0].strip()
  return path.partition('.')[0].partition('[')[0]


def _changed(method: Callable, root: str, settings: Sequence[str]) -> Callable:
  def changed() -> Any:
    made = method()
    config_overrides.apply({root: made}, settings)
    return made

  return changed
