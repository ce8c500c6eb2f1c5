"""Task schedules: which of several tasks a step trains."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pax_compat import config as config_lib
from pax_compat.config import REQUIRED, Config


class BaseTaskSchedule(config_lib.Configurable):
  """Chooses the task of a step, by the step and a random number."""

  def task_names(self) -> list[str]:
    """Returns the names of the tasks of the schedule."""
    raise NotImplementedError(type(self).__name__)

  def task_at(self, step: int, draw: float) -> str:
    """Returns the name of the task that a step trains.

    Args:
      step: number of steps before.
      draw: random number, uniform in [0, 1).
    """
    raise NotImplementedError(type(self).__name__)


class TasksByWeight(BaseTaskSchedule):
  """Samples tasks in proportion to their weights.

  After n steps, a task's weight is v + (w - v) * exp(-rate * n), with initial
  weight w and final weight v. Only the ratios of weights matter.

  Attributes:
    weights: the initial weights of tasks by name.
    final_weights: the limits of weights; None for the initial ones.
    rate: decay rate per step.

  Raises:
    UserError: a weight or the rate is negative or not finite, all weights are
      0, or `weights` and `final_weights` have different tasks.
  """

  weights: Mapping[str, float] = REQUIRED
  final_weights: Mapping[str, float] | None = None
  rate: float = 0.0

  def __post_init__(self):
    final = self.weights if self.final_weights is None else self.final_weights
    for field, values in (('weights', self.weights), ('final_weights', final)):
      numbers = list(values.values())
      self.check(
        all(math.isfinite(w) and w >= 0 for w in numbers) and sum(numbers) > 0,
        f'{field} is {dict(values)}; expected numbers that are not negative,'
        ' and at least one above 0',
      )
    self.check(
      final.keys() == self.weights.keys(),
      f'final_weights has {", ".join(final)}; expected the tasks of weights,'
      f' {", ".join(self.weights)}',
    )
    self.check(
      math.isfinite(self.rate) and self.rate >= 0,
      f'rate is {self.rate}; expected 0 or more',
    )
    self._initial = np.array(list(self.weights.values()), float)
    self._final = np.array([final[task] for task in self.weights], float)

  def task_names(self):
    return list(self.weights)

  def task_at(self, step, draw):
    decay = math.exp(-self.rate * step)
    sums = np.cumsum(self._final + (self._initial - self._final) * decay)
    index = np.searchsorted(sums / sums[-1], draw, side='right')
    return self.task_names()[index]


class TasksInTurn(BaseTaskSchedule):
  """Round-robin: each task in turn, and after the last the first again.

  Attributes:
    tasks: names of tasks; a name can occur several times.
    steps_each: number of steps of each turn.

  Raises:
    UserError: there are no tasks, or `steps_each` is below 1.
  """

  tasks: Sequence[str] = REQUIRED
  steps_each: int = 1

  def __post_init__(self):
    self.check(bool(self.tasks), 'tasks is empty; expected names of tasks')
    self.check(
      self.steps_each >= 1,
      f'steps_each is {self.steps_each}; expected 1 or more',
    )

  def task_names(self):
    return list(self.tasks)

  def task_at(self, step, draw):
    del draw
    return self.tasks[step // self.steps_each % len(self.tasks)]


class TasksInSequence(BaseTaskSchedule):
  """Trains each task for some steps, one after the other.

  Attributes:
    task_steps: (name, number of steps) of each task. The last task is trained
      to the end, so that its number has no effect.

  Raises:
    UserError: there are no tasks, or a number is below 1.
  """

  task_steps: Sequence[tuple[str, int]] = REQUIRED

  def __post_init__(self):
    self.check(
      bool(self.task_steps) and all(steps >= 1 for _, steps in self.task_steps),
      f'task_steps is {self.task_steps!r}; expected (name, number of steps) of'
      ' each task, with numbers of 1 or more',
    )
    self._ends = np.cumsum([steps for _, steps in self.task_steps[:-1]])

  def task_names(self):
    return [task for task, _ in self.task_steps]

  def task_at(self, step, draw):
    del draw
    index = np.searchsorted(self._ends, step, side='right')
    return self.task_steps[index][0]


class TasksInPhases(BaseTaskSchedule):
  """Follows several schedules, each for some steps.

  A schedule counts the steps of its own phase: it starts at step 0.

  Attributes:
    phases: (config of a schedule, number of steps) of each phase. The last
      schedule goes on to the end, so that its number has no effect.

  Raises:
    UserError: `phases` is empty, or a number is below 1.
  """

  phases: Sequence[tuple[Config, int]] = REQUIRED

  def __post_init__(self):
    self.check(
      bool(self.phases) and all(steps >= 1 for _, steps in self.phases),
      f'phases has the numbers of steps {[n for _, n in self.phases]}; expected'
      ' one number of 1 or more, or several',
    )
    self._schedules = [config.Instantiate() for config, _ in self.phases]
    lengths = [steps for _, steps in self.phases[:-1]]
    self._starts = np.cumsum([0, *lengths])

  def task_names(self):
    names = (name for one in self._schedules for name in one.task_names())
    return list(dict.fromkeys(names))

  def task_at(self, step, draw):
    index = np.searchsorted(self._starts, step, side='right') - 1
    return self._schedules[index].task_at(step - int(self._starts[index]), draw)
