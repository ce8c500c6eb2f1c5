"""Actions that evaluate and decode a task while it is trained."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax

from pax_compat import base_input, errors
from pax_compat.metrics import metric_writers, time_use
from pax_compat.metrics import progress as progress_lib
from pax_compat.processes import joint_failure
from pax_compat.trainer import program, stopping
from pax_compat.trainer.actions import StepContext
from pax_compat.trainer.evaluating import (
  batch_results,
  decoding,
  evaluation,
  measured,
)
from pax_compat.trainer.feeding.pipeline import DeviceBatch

# Name of the next training batch among the eval datasets.
_NEXT = 'train'


class Measure:
  """Base of the actions that evaluate and decode.

  It writes `StepContext.measured`. If the run stops meanwhile, it sets
  `is_stopping` and `evaluations_pending`, and a run that continues repeats all
  evaluations of the step.
  """

  def __init__(
    self,
    *,
    task_program: program.TaskProgram,
    folder: pathlib.Path,
    writer: metric_writers.MetricWriter,
    progress: progress_lib.Progress,
    before: Callable[[], None],
    stop: stopping.Stop,
    print_line: Callable[[str], None],
    spent: time_use.TimeUse,
  ):
    """Makes the action.

    Args:
      task_program: has the steps.
      folder: of the run.
      writer: takes the metrics.
      progress: is restarted after the pause in training.
      before: is called before the first dataset.
      stop: called between batches; returns whether the run is to stop.
      print_line: prints a line for the user.
      spent: counts the time of the run.
    """
    self._program = task_program
    self._folder = folder
    self._writer = writer
    self._progress = progress
    self._before = before
    self._stop = stop
    self._print_line = print_line
    self._spent = spent

  def __call__(self, context: StepContext):
    names = self._scheduled(context)
    if not names:
      return
    self._before()
    try:
      if context.is_stopping:
        raise stopping.Interrupted
      with self._spent.of(time_use.EVALUATION):
        for name in names:
          self._measure(name, context)
    except stopping.Interrupted:
      context.is_stopping = context.evaluations_pending = True
    self._progress.start()  # Evaluations do not count as training time.

  def is_scheduled(self, context: StepContext) -> bool:
    """Returns whether a dataset is scheduled for this step."""
    return bool(self._scheduled(context))

  def _scheduled(self, context: StepContext) -> tuple[str, ...]:
    """Returns the names of the datasets that are scheduled for this step."""
    raise NotImplementedError

  def _measure(self, name: str, context: StepContext):
    """Evaluates or decodes a dataset, and reports the result."""
    raise NotImplementedError

  def _report(
    self, context: StepContext, split: str, values: dict[str, Any], line: str
  ):
    """Writes all values of a split, and prints a line."""
    joint_failure.together(
      lambda: self._writer.write_values(context.step, split, values),
      f'writing the metrics of {split}',
    )
    context.measured[split] = batch_results.numbers(values)
    self._print_line(line)


class Evaluate(Measure):
  """Evaluates some datasets every `eval_interval_steps`, and all at the end.

  The next training batch is evaluated, too, before the model is trained on it,
  under the name `train`, unless `eval_skip_train` is set.
  """

  def __init__(
    self,
    data: dict[str, base_input.BaseInput],
    *,
    peek: Callable[[], DeviceBatch | None],
    **common,
  ):
    """Makes the action.

    Args:
      data: the datasets by name.
      peek: returns the next training batch, None if there is none.
      **common: see `Measure`.
    """
    super().__init__(**common)
    self._data = data
    self._peek = peek
    train = self._program.task.train
    if _NEXT in data and not train.eval_skip_train:
      raise errors.UserError(
        f'the eval dataset {_NEXT!r} has the name under which the next training'
        ' batch is evaluated; expected another name, or Train.eval_skip_train'
      )
    during = train.eval_during_training
    self._during = tuple(data) if during is None else tuple(during)
    for name in self._during:
      if name not in data:
        raise errors.UserError(
          f'Train.eval_during_training has {name!r}, which is not an eval'
          f' dataset{errors.did_you_mean(name, data)}'
        )

  def _scheduled(self, context):
    every = self._program.task.train.eval_interval_steps
    in_turn = bool(every) and context.step % every == 0
    names = self._during if in_turn else ()
    if context.is_last_step:
      names = tuple(self._data)
    if in_turn and not self._program.task.train.eval_skip_train:
      names = (_NEXT, *names)
    return names

  def _measure(self, name, context):
    mdl_vars = self._program.eval_vars(
      context.state, use_ema=self._program.task.train.eval_use_ema_states
    )
    if name == _NEXT and not self._program.task.train.eval_skip_train:
      values = self._next_train_batch(mdl_vars)
      if not values:
        return
    else:
      values = evaluation.evaluate(
        self._data[name],
        task_program=self._program,
        mdl_vars=mdl_vars,
        examples_path=measured.eval_path(
          self._folder, self._program.task, name, context.step
        ),
        stop=self._stop,
      )
    loss = self._program.loss_aggregator.loss_name
    line = measured.eval_line(context.step, name, values, loss=loss)
    self._report(context, f'eval_{name}', values, line)

  def _next_train_batch(self, mdl_vars) -> dict[str, Any]:
    batch = joint_failure.together(self._peek, 'reading the training input')
    if batch is None:
      return {}
    aggregator = batch_results.StepAggregator(self._program)
    outputs = self._program.eval_step(mdl_vars, batch.arrays)
    aggregator.add(jax.device_get(outputs.replace(per_example={})))
    return aggregator.result()


class Decode(Measure):
  """Decodes all decode datasets every `decode_interval_steps`."""

  def __init__(self, data: dict[str, base_input.BaseInput], **common):
    """Makes the action.

    Args:
      data: the datasets by name.
      **common: see `Measure`.
    """
    super().__init__(**common)
    self._data = data

  def _scheduled(self, context):
    train = self._program.task.train
    every = train.decode_interval_steps
    if not every:
      return ()
    in_turn = (
      context.step % every == 0
      and context.step >= train.decode_start_after_n_steps
    )
    return tuple(self._data) if in_turn or context.is_last_step else ()

  def _measure(self, name, context):
    values = decoding.decode(
      self._data[name],
      task_program=self._program,
      mdl_vars=self._program.eval_vars(
        context.state, use_ema=self._program.task.train.decode_use_ema_states
      ),
      path=measured.decode_path(self._folder, name, context.step),
      profile=measured.decode_profile(
        self._folder, self._program, f'decode_{name}'
      ),
      stop=self._stop,
    )
    line = measured.decode_line(context.step, name, values)
    self._report(context, f'decode_{name}', values, line)
