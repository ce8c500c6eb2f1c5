"""The route of a task: translated to JAX, bridged, or impossible."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from adaptors.bridge import multi_task
from adaptors.bridge import task as bridge_task
from adaptors.bridge.functional.functional_task import FunctionalTask
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.experiments.lingvo_experiment import LingvoExperiment
from adaptors.migrate.findings import Status
from adaptors.stand_ins import renames
from adaptors.translate.tasks.single import TranslatedTask
from adaptors.translate.view import Issue
from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Route:
  """How a task runs here.

  Attributes:
    params: of the task.
    status: the kind of route.
    translated: the task in JAX; None if it is impossible.
    issues: the reasons why it is not native.
    problem: why it is impossible; else ''.
  """

  params: Any
  status: Status
  translated: TranslatedTask | None = None
  issues: tuple[Issue, ...] = ()
  problem: str = ''

  @functools.cached_property
  def built(self) -> FunctionalTask:
    """Lingvo's task, with placeholders for its variables."""
    if self.status is Status.BRIDGED:
      return self.translated.config.model.lingvo_task.at_training
    return LingvoTask(self.params).at_training


def of(experiment: LingvoExperiment) -> Route:
  """Returns the route that the run of an experiment of one task takes.

  Args:
    experiment: the experiment.
  """
  return _route(experiment.task_params(), lambda: experiment.route)


def of_several(model: Any, task: str, params: Any, name: str) -> Route:
  """Returns the route of one of several tasks.

  Args:
    model: the model's Params, with an input for each task.
    task: its name in the model.
    params: its Params, with its training input.
    name: of the experiment, for messages.
  """
  return _route(
    params, lambda: multi_task.route(model, task, params, name, 'auto')
  )


def _route(params: Any, decide: Callable[[], bridge_task.Route]) -> Route:
  try:
    route = decide()
  except bridge_task.NoRouteError as error:
    place = errors.location_in_user_code(error)
    problem = error.not_bridged + (f' (at {place})' if place else '')
    return Route(params, Status.IMPOSSIBLE, None, error.issues, problem)
  return Route(params, Status(route.kind.value), route.translated, route.issues)


def describe_error(error: Exception) -> str:
  """Returns an error's message with its location, in user code if possible."""
  if isinstance(error, errors.UserError):
    place = errors.location_in_user_code(error)
    return f'{error} (at {place})' if place else str(error)
  return errors.with_location(error) + renames.of_error(error)
