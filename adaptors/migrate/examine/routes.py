"""How a task runs here: translated to JAX, bridged, or not at all."""

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
class Way:
  """How a task runs here.

  Attributes:
    params: of the task.
    status: the kind of way.
    translated: the task in JAX; None where there is no way.
    issues: what keeps it from being native.
    problem: why there is no way; else ''.
  """

  params: Any
  status: Status
  translated: TranslatedTask | None = None
  issues: tuple[Issue, ...] = ()
  problem: str = ''

  @functools.cached_property
  def built(self) -> FunctionalTask:
    """Lingvo's task, with stand-ins for its variables."""
    if self.status is Status.BRIDGED:
      return self.translated.config.model.lingvo_task.at_training
    return LingvoTask(self.params).at_training


def find(params: Any, name: str, path: str) -> Way:
  """Returns the way of a task.

  Args:
    params: its Params, with its training input.
    name: of the experiment, for messages.
    path: where the Params stand, for messages.
  """
  try:
    translated = task_translation.translate_task(params, name, path=path)
  except UntranslatedError as error:
    return _bridged(params, name, error.issues)
  except Exception as error:  # Much of what runs here is the user's.
    issue = Issue(path, class_path(params.cls), told(error))
    return _bridged(params, name, (issue,))
  return Way(params, Status.NATIVE, translated)


def _bridged(params: Any, name: str, issues: tuple[Issue, ...]) -> Way:
  """Returns the way of a task that has no translation, or none of its parts."""
  problem = ''
  for status, bridge in (
    (Status.PARTLY, bridge_task.bridge_parts),
    (Status.BRIDGED, bridge_task.bridge_task),
  ):
    try:
      return Way(params, status, bridge(params, name), issues)
    except Exception as error:  # Much of what runs here is the user's.
      problem = told(error)
  return Way(params, Status.IMPOSSIBLE, None, issues, problem)


def told(error: Exception) -> str:
  """Returns what went wrong, and where in the user's code it did."""
  place = errors.location_in_user_code(error)
  if isinstance(error, errors.UserError):
    return f'{error} (at {place})' if place else str(error)
  place = place or errors.location_of(error)
  return f'{type(error).__name__}: {error} ({place})'
