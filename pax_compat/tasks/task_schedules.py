"""Which of several tasks a step trains."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pax_compat import config as config_lib
from pax_compat.config import REQUIRED


class BaseTaskSchedule(config_lib.Configurable):
  """Says which task a step trains, by the step's number and a random number."""

  def task_names(self) -> list[str]:
    """Returns the names of the tasks that it may choose."""
    raise NotImplementedError(type(self).__name__)

  def task_at(self, step: int, draw: float) -> str:
    """Returns the name of the task that a step trains.

    Args:
      step: how many steps were made before.
      draw: evenly distributed from 0 to 1, the latter excluded.
    """
    raise NotImplementedError(type(self).__name__)


class TasksByWeight(BaseTaskSchedule):
  """Draws tasks, each as often as its weight says.

  Before step n, a task's weight is v + (w - v) * exp(-rate * n), with w its
  first weight and v its final one. Only the weights' ratios matter.

  Attributes:
    weights: the tasks' first weights by name.
    final_weights: what they tend to; None for the first ones.
    rate: how fast, per step.

  Raises:
    UserError: a weight or the rate is negative or not finite, all weights are
      0, or the two have weights of different tasks.
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
      f'final_weights is of {", ".join(final)}; expected the tasks of weights,'
      f' {", ".join(self.weights)}',
    )
    self.check(
      math.isfinite(self.rate) and self.rate >= 0,
      f'rate is {self.rate}; expected 0 or more',
    )
    self._first = np.array(list(self.weights.values()), float)
    self._final = np.array([final[task] for task in self.weights], float)

  def task_names(self):
    return list(self.weights)

  def task_at(self, step, draw):
    decay = math.exp(-self.rate * step)
    sums = np.cumsum(self._final + (self._first - self._final) * decay)
    index = np.searchsorted(sums / sums[-1], draw, side='right')
    return self.task_names()[index]


class TasksInTurn(BaseTaskSchedule):
  """Goes round: the first task, the second, and after the last the first.

  Attributes:
    tasks: their names; one that comes twice has two turns.
    steps_each: how many steps a turn has.

  Raises:
    UserError: there are none, or turns have no steps.
  """

  tasks: Sequence[str] = REQUIRED
  steps_each: int = 1

  def __post_init__(self):
    self.check(bool(self.tasks), 'tasks is empty; expected names of tasks')
    self.check(
      self.steps_each >= 1, f'steps_each is {self.steps_each}; expected 1'
    )

  def task_names(self):
    return list(self.tasks)

  def task_at(self, step, draw):
    del draw
    return self.tasks[step // self.steps_each % len(self.tasks)]


class TasksInSequence(BaseTaskSchedule):
  """Stays with each task for some steps, and with the last one for good.

  Attributes:
    task_steps: (name, number of steps) of each; that of the last has no effect.

  Raises:
    UserError: there are none, or a number is below 1.
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
