"""Bridged tasks of Lingvo models whose tasks share an encoder or a decoder.

A task of `SharedEncoderModel` has no encoder in its Params: the model adds that
of another task. So the whole model is built, and the task is taken from it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adaptors import lingvo_runtime
from adaptors.bridge.functional import functional_task
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.bridge.scoped_variables import jax_path
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.variables import VariableMap
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.layer_core.task_scopes import scope_of

_MODELS = 'lingvo.core.multitask_model'
_SHARING = ('SharedEncoderModel', 'SharedEncoderDecoderModel')


def is_sharing(cls: type) -> bool:
  """Whether a model's class is one of Lingvo's whose tasks share layers."""
  models = lingvo_runtime.module(_MODELS)
  return any(issubclass(cls, getattr(models, name)) for name in _SHARING)


def is_lingvos(cls: type) -> bool:
  """Whether a class is itself one of Lingvo's whose tasks share layers."""
  return cls.__module__ == _MODELS and cls.__name__ in _SHARING


def builder(model: Any, task: str) -> Callable[[Any], Any]:
  """Returns a function that builds a task by its Params, within the model.

  Args:
    model: the model's Params, with an input for each task.
    task: its name.
  """

  def build(params):
    whole = functional_task.on_one_device(model)
    own = params.Copy()
    whole.input.Set(**{task: own.input})
    whole.task_params.Set(**{task: own.Set(input=None)})
    # The moving averages are not Lingvo's.
    tasks = [one for _, one in whole.task_params.IterParams()]
    for one in (whole, *tasks):
      one.train.Set(ema_decay=0.0, ema_schedule=None)
    for one in tasks:
      functional_task.without_sample_limits(one)
    return whole.Instantiate().GetTask(task)

  return build


class Names(VariableNames):
  """The names of a task's variables in its model."""

  def __init__(self, lingvo_task: LingvoTask, variables: VariableMap):
    """Takes them from the variables of the built task."""
    super().__init__(lingvo_task.params, variables)
    self._lingvo_task = lingvo_task

  @property
  def by_theta(self):
    found = self._lingvo_task.at_training.variables
    return {theta: variable.name for theta, variable in found.items()}


def tied(tasks: Mapping[str, LingvoTask]) -> list[Sequence[str]]:
  """Returns groups of names here of variables that are one in Lingvo.

  Args:
    tasks: by name.
  """
  groups: dict[str, list[str]] = {}
  for task, lingvo_task in tasks.items():
    for theta, variable in lingvo_task.at_training.variables.items():
      kind = PARAMS if variable.trainable else NON_TRAINABLE
      name = f'{kind}/{scope_of(task)}/{jax_path(theta)}'
      groups.setdefault(variable.name, []).append(name)
  return [tuple(group) for group in groups.values() if len(group) > 1]
