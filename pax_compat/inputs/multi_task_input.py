"""Inputs of several tasks: batches of the form {task: batch of the task}."""

from collections.abc import Mapping

import numpy as np

from pax_compat import base_input, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.inputs import composed_state
from pax_compat.nested_map import NestedMap


class MultiTaskInput(base_input.BaseInput):
  """The training input of several tasks: each batch is one task's.

  Which task comes at which step depends only on the schedule and on
  `input_random_seed` (None is 0): all processes draw the same tasks, and a run
  that continues draws those that it would have drawn without a break. Where all
  of the tasks' inputs have a state, this one has.

  Attributes:
    inputs: config of each task's training input, by the task's name.
    schedule: says which task comes next, a `task_schedules.BaseTaskSchedule`.
    steps_per_draw: for how many steps the training stays with a task before
      the schedule is asked again.
    is_training: whether this is the training input; there is no other use.

  Raises:
    UserError: the schedule has a task that has no input, `steps_per_draw` is
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
    self._sources: dict[str, base_input.BaseInput] = {}
    try:
      for task, config in self.inputs.items():
        self._sources[task] = _built(config, self)
    except BaseException:
      self.close()
      raise

  @property
  def state_fits_any_hosts(self) -> bool:
    return composed_state.fit_any_hosts(self._sources)

  def get_next(self) -> NestedMap:
    task = self._next_task()
    return NestedMap({task: self._sources[task].get_next_padded()})

  def example_batch(self, first: NestedMap) -> NestedMap:
    others = {
      task: self._first_of(task) for task in self._sources if task not in first
    }
    return NestedMap({**others, **first})

  def resume_at(self, step: int):
    counts = dict.fromkeys(self._sources, 0)
    for _ in range(step):
      counts[self._next_task()] += 1
    for task, count in counts.items():
      self._sources[task].resume_at(count)

  def after_restart(self) -> str:
    return composed_state.after_restart(self._sources)

  def _get_state_internal(self) -> bytes:
    return composed_state.composed(
      self._sources,
      step=self._step,
      task=self._task,
      draws=self._draws.bit_generator.state,
    )

  def _set_state_internal(self, state: bytes):
    self._step, self._task, self._draws.bit_generator.state = (
      composed_state.decomposed(
        state, self._sources, of=self.name, own=('step', 'task', 'draws')
      )
    )

  def parts(self):
    return self._sources.values()

  def is_host_field(self, path, leaf):
    task, _, rest = path.partition('.')
    if task not in self._sources:
      return super().is_host_field(path, leaf)
    return self._sources[task].is_host_field(rest, leaf)

  def tokenizers(self):
    return {
      f'{task} {name}'.strip(): description
      for task, source in self._sources.items()
      for name, description in source.tokenizers().items()
    }

  def _next_task(self) -> str:
    if self._step % self.steps_per_draw == 0:
      self._task = self._schedule.task_at(self._step, self._draws.random())
    self._step += 1
    return self._task

  def _first_of(self, task: str) -> NestedMap:
    batch = self._sources[task].peek_padded()
    if batch is None:
      raise errors.UserError(
        f'{self.name}: the input of the task {task!r} has no batch'
      )
    return batch


class TaskInput(base_input.BaseInput):
  """A dataset of one of several tasks, to be evaluated or decoded.

  How much of it is read at a time is what its input says.

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
    self.source = _built(self.input, self)
    self.reset_for_eval = self.source.reset_for_eval
    self.eval_loop_num_batches = self.source.eval_loop_num_batches

  def get_next(self) -> NestedMap:
    return NestedMap({self.task: self.source.get_next_padded()})

  def reset(self):
    self.source.reset()

  def parts(self):
    return (self.source,)

  def is_host_field(self, path, leaf):
    task, _, rest = path.partition('.')
    if task != self.task:
      return super().is_host_field(path, leaf)
    return self.source.is_host_field(rest, leaf)

  def has_example_metrics(self, kind):
    return self.source.has_example_metrics(kind)

  def example_metrics(self, kind, examples):
    return self.source.example_metrics(kind, self._own(kind, examples))

  def order_digest(self):
    return self.source.order_digest()

  def example_lines(self, kind, examples):
    return self.source.example_lines(kind, self._own(kind, examples))

  def _own(self, kind, examples):
    """Returns examples as the task's input and model call their fields."""
    own = []
    for host, made in examples:
      host = _without_prefix(host, f'{self.task}.')
      if kind == 'eval':
        made = _without_prefix(made, f'{self.task}/')
      own.append((host, made))
    return own

  def ids_to_strings(self, ids, lengths, key=None):
    return self.source.ids_to_strings(ids, lengths, key)

  def tokenizers(self):
    return self.source.tokenizers()


def _without_prefix(fields: Mapping, prefix: str) -> dict:
  return {name.removeprefix(prefix): x for name, x in fields.items()}


def _built(
  config: Config, parent: base_input.BaseInput
) -> base_input.BaseInput:
  """Returns the input of a task, which feeds as its parent does."""
  return config.Instantiate(
    num_infeed_hosts=parent.num_infeed_hosts,
    infeed_host_index=parent.infeed_host_index,
    input_checkpointing_enabled=parent.input_checkpointing_enabled,
  )
