"""Inputs of several tasks: batches of the form {task: batch of the task}."""

from collections.abc import Mapping

import numpy as np

from pax_compat import errors
from pax_compat.config import REQUIRED, Config
from pax_compat.inputs import composed_input
from pax_compat.nested_map import NestedMap


class MultiTaskInput(composed_input.ComposedInput):
  """The training input of several tasks: each batch is of one task.

  The task of each step depends only on the schedule and on `input_random_seed`
  (None is 0): all processes draw the same tasks, and a run that continues draws
  the tasks of an uninterrupted run. This input has a state if all of the tasks'
  inputs have one.

  Attributes:
    inputs: config of each task's training input, by the task's name.
    schedule: chooses the next task, a `task_schedules.BaseTaskSchedule`.
    steps_per_draw: number of steps with one task before the next draw.
    is_training: whether this is the training input, which is its only use.

  Raises:
    UserError: the schedule has a task without an input, `steps_per_draw` is
      below 1, or a field is set that belongs to the tasks' inputs.
  """

  inputs: Mapping[str, Config] = REQUIRED
  schedule: Config = REQUIRED
  steps_per_draw: int = 1
  is_training: bool = True

  def __post_init__(self):
    super().__post_init__()
    if self.batch_size is not None or self.reset_for_eval:
      raise errors.UserError(
        f'{self.name}: batch_size or reset_for_eval of a MultiTaskInput is set;'
        " expected it on the tasks' inputs, and TaskInput for evaluations"
      )
    if self.steps_per_draw < 1:
      raise errors.UserError(
        f'{self.name}: MultiTaskInput.steps_per_draw is {self.steps_per_draw};'
        ' expected 1 or more'
      )
    self._schedule = self.schedule.Instantiate()
    for task in self._schedule.task_names():
      if task not in self.inputs:
        raise errors.UserError(
          f'{self.name}: MultiTaskInput.schedule has the task {task!r}, which'
          f' has no input{errors.did_you_mean(task, self.inputs)}'
        )
    self._draws = np.random.default_rng(self.input_random_seed or 0)
    self._step = 0
    self._task = ''
    self._build(self.inputs)

  def get_next(self) -> NestedMap:
    return self._next_of([self._next_task()])

  def example_batch(self, first: NestedMap) -> NestedMap:
    others = {
      task: self._first_of(task) for task in self._inputs if task not in first
    }
    return NestedMap({**others, **first})

  def resume_at(self, step: int):
    counts = dict.fromkeys(self._inputs, 0)
    for _ in range(step):
      counts[self._next_task()] += 1
    for task, count in counts.items():
      self._inputs[task].resume_at(count)

  def _own_state(self):
    draws = self._draws.bit_generator.state
    return {'step': self._step, 'task': self._task, 'draws': draws}

  def _set_own_state(self, values):
    self._step, self._task = values['step'], values['task']
    self._draws.bit_generator.state = values['draws']

  def _next_task(self) -> str:
    if self._step % self.steps_per_draw == 0:
      self._task = self._schedule.task_at(self._step, self._draws.random())
    self._step += 1
    return self._task

  def _first_of(self, task: str) -> NestedMap:
    batch = self._inputs[task].peek_padded()
    if batch is None:
      raise errors.UserError(
        f'{self.name}: the input of the task {task!r} has no batch'
      )
    return batch


class TaskInput(composed_input.ComposedInput):
  """A dataset of one of several tasks, for evaluation or decoding.

  `reset_for_eval` and `eval_loop_num_batches` are those of its input.

  Attributes:
    task: the task's name.
    input: config of the task's input.

  Raises:
    UserError: a field is set that belongs to the input.
  """

  task: str = REQUIRED
  input: Config = REQUIRED

  def __post_init__(self):
    super().__post_init__()
    if self.batch_size is not None or self.reset_for_eval:
      raise errors.UserError(
        f'{self.name}: batch_size or reset_for_eval of a TaskInput is set;'
        ' expected it on its input'
      )
    self._build({self.task: self.input})
    self.source = self._inputs[self.task]
    self.reset_for_eval = self.source.reset_for_eval
    self.eval_loop_num_batches = self.source.eval_loop_num_batches

  def get_next(self) -> NestedMap:
    return self._next_of([self.task])

  def order_digest(self):
    return self.source.order_digest()

  def has_example_metrics(self, kind):
    return self.source.has_example_metrics(kind)

  def example_metrics(self, kind, examples):
    return self.source.example_metrics(kind, self._own(kind, examples))

  def example_lines(self, kind, examples):
    return self.source.example_lines(kind, self._own(kind, examples))

  def _own(self, kind, examples):
    """Returns examples with the field names of the task's input and model."""
    own = []
    for host, output in examples:
      host = _without_prefix(host, f'{self.task}.')
      if kind == 'eval':
        output = _without_prefix(output, f'{self.task}/')
      own.append((host, output))
    return own

  def ids_to_strings(self, ids, lengths, key=None):
    return self.source.ids_to_strings(ids, lengths, key)

  def prompts(self, strings, key=None):
    return self.source.prompts(strings, key)

  def tokenizers(self):
    return self.source.tokenizers()


def _without_prefix(fields: Mapping, prefix: str) -> dict:
  return {name.removeprefix(prefix): x for name, x in fields.items()}
