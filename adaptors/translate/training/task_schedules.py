"""Translates `lingvo.core.task_scheduler`, which chooses the task of a step."""

from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.view import ParamsView
from pax_compat.config import Config
from pax_compat.tasks import task_schedules

_MODULE = 'lingvo.core.task_scheduler'


@translates(f'{_MODULE}.ConstantScheduler')
def constant(view: ParamsView) -> Config:
  """Returns a schedule that samples tasks with constant weights."""
  view.ignore('the weights are constant', 'alpha')
  return task_schedules.TasksByWeight.config(weights=_weights(view))


@translates(f'{_MODULE}.ExponentialScheduler')
def exponential(view: ParamsView) -> Config:
  return _changing(view, 1)


@translates(f'{_MODULE}.SigmoidScheduler')
def sigmoid(view: ParamsView) -> Config:
  """Returns an exponential schedule that starts twice as high."""
  return _changing(view, 2)


@translates(f'{_MODULE}.RoundRobinScheduler')
def round_robin(view: ParamsView) -> Config:
  """Returns a schedule that goes on where a resumed run stopped.

  Lingvo's starts with the first task again.
  """
  return task_schedules.TasksInTurn.config(tasks=list(view.get('tasks')))


@translates(f'{_MODULE}.SequentialScheduler')
def sequential(view: ParamsView) -> Config:
  steps = [(task, steps) for task, steps in view.get('task_steps')]
  return task_schedules.TasksInSequence.config(task_steps=steps)


@translates(f'{_MODULE}.PieceWiseScheduler')
def piecewise(view: ParamsView) -> Config:
  """Returns a schedule of several, each of which counts its own steps."""
  phases = []
  for n, (params, steps) in enumerate(view.get('schedule_steps')):
    one = view.adopt(params, f'schedule_steps[{n}]')
    phases.append((registry.translate(one), steps))
  return task_schedules.TasksInPhases.config(phases=phases)


def _changing(view: ParamsView, start: float) -> Config:
  """Returns a schedule whose weights change with the step.

  Args:
    view: the Params.
    start: factor of the initial weights.
  """
  weights = _weights(view)
  return task_schedules.TasksByWeight.config(
    weights={task: start * first for task, (first, _) in weights.items()},
    final_weights={task: final for task, (_, final) in weights.items()},
    rate=float(view.get('alpha')),
  )


def _weights(view: ParamsView) -> dict:
  """Returns the entries of `task_probs` by task, in their order."""
  pairs = view.get('task_probs')
  weights = dict(pairs)
  if len(weights) < len(pairs):
    view.issue('task_probs', 'it contains a task twice')
  return weights
