"""The route of a task: translated to JAX, bridged, or impossible."""

import dataclasses
import functools
from typing import Any

from adaptors.bridge import task as bridge_task
from adaptors.bridge.functional.functional_task import FunctionalTask
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.migrate.findings import Status
from adaptors.translate.tasks import single as task_translation
from adaptors.translate.tasks.single import TranslatedTask
from adaptors.translate.view import Issue, UntranslatedError, class_path
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


def find(params: Any, name: str, path: str) -> Route:
  """Returns the route of a task.

  Args:
    params: its Params, with its training input.
    name: of the experiment, for messages.
    path: of the Params, for messages.
  """
  try:
    translated = task_translation.translate_task(params, name, path=path)
  except UntranslatedError as error:
    return _bridged(params, name, error.issues)
  except Exception as error:  # User code runs here.
    issue = Issue(path, class_path(params.cls), describe_error(error))
    return _bridged(params, name, (issue,))
  return Route(params, Status.NATIVE, translated)


def _bridged(params: Any, name: str, issues: tuple[Issue, ...]) -> Route:
  """Returns the route of a task that has no complete translation."""
  problem = ''
  for status, bridge in (
    (Status.PARTLY, bridge_task.bridge_parts),
    (Status.BRIDGED, bridge_task.bridge_task),
  ):
    try:
      return Route(params, status, bridge(params, name), issues)
    except Exception as error:  # User code runs here.
      problem = describe_error(error)
  return Route(params, Status.IMPOSSIBLE, None, issues, problem)


def describe_error(error: Exception) -> str:
  """Returns an error's message with its location, in user code if possible."""
  place = errors.location_in_user_code(error)
  if isinstance(error, errors.UserError):
    return f'{error} (at {place})' if place else str(error)
  place = place or errors.location_of(error)
  return f'{type(error).__name__}: {error} ({place})'
