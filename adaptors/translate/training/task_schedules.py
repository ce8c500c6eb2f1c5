"""Translates `lingvo.core.task_scheduler`: which task is trained when."""

from adaptors.translate.registry import translates
from adaptors.translate.view import ParamsView
from pax_compat.config import Config
from pax_compat.tasks import task_schedules

_MODULE = 'lingvo.core.task_scheduler'


@translates(f'{_MODULE}.ConstantScheduler')
def constant(view: ParamsView) -> Config:
  """`ConstantScheduler`."""
  view.ignore('weights do not change', 'alpha')
  return task_schedules.TasksByWeight.config(weights=_weights(view))


@translates(f'{_MODULE}.ExponentialScheduler')
def exponential(view: ParamsView) -> Config:
  """`ExponentialScheduler`."""
  return _changing(view, 1)


@translates(f'{_MODULE}.SigmoidScheduler')
def sigmoid(view: ParamsView) -> Config:
  """`SigmoidScheduler`, which is exponential too, but starts twice as high."""
  return _changing(view, 2)


@translates(f'{_MODULE}.RoundRobinScheduler')
def round_robin(view: ParamsView) -> Config:
  """`RoundRobinScheduler`.

  Lingvo's begins with the first task again where a run continues.
  """
  return task_schedules.TasksInTurn.config(tasks=list(view.get('tasks')))


@translates(f'{_MODULE}.SequentialScheduler')
def sequential(view: ParamsView) -> Config:
  """`SequentialScheduler`."""
  steps = [(task, steps) for task, steps in view.get('task_steps')]
  return task_schedules.TasksInSequence.config(task_steps=steps)


def _changing(view: ParamsView, start: float) -> Config:
  """Returns weights that change.

  Args:
    view: the Params.
    start: what the first weights are multiplied by.
  """
  weights = _weights(view)
  return task_schedules.TasksByWeight.config(
    weights={task: start * first for task, (first, _) in weights.items()},
    final_weights={task: final for task, (_, final) in weights.items()},
    rate=float(view.get('alpha')),
  )


def _weights(view: ParamsView) -> dict:
  """Returns what a schedule says of each task, by name, in its order."""
  pairs = view.get('task_probs')
  weights = dict(pairs)
  if len(weights) < len(pairs):
    view.issue('task_probs', 'a task is there twice')
  return weights
