"""The training loop: steps, and the actions after each of them."""

import collections
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import checkpoints, errors
from pax_compat.metrics import metric_writers, time_use
from pax_compat.metrics import progress as progress_lib
from pax_compat.processes import watchdog
from pax_compat.runs import job_lock
from pax_compat.trainer import (
  actions,
  compiling_ahead,
  model_flops,
  numbers_guard,
  profiling,
  program,
  run_options,
  saving,
  stopping,
)
from pax_compat.trainer.evaluating import evaluation_actions
from pax_compat.trainer.feeding import (
  agreement,
  dataset_inputs,
  first_batch,
  input_position,
  pipeline,
  prefetching,
  sources,
)
from pax_compat.trainer.reporting import progress_report, step_counter


class Stopped(Exception):  # noqa: N818 (not an error)
  """The run was asked to stop, and stopped after a step.

  Attributes:
    signal_number: number of the signal that asked.
  """

  def __init__(self, step: int, signal_number: int, *, is_saved: bool = True):
    saved = (
      'which is saved; the same command continues'
      if is_saved
      else 'which is not saved'
    )
    super().__init__(f'stopped after step {step}, {saved}')
    self.signal_number = signal_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """Everything that a run consists of, except its state.

  Attributes:
    program: the task's compiled steps.
    data: the inputs.
    first: the example that initialises the model.
    ahead: the train step that is being compiled.
    position: saves and restores the position of the training input.
    lock: of the folder, in process 0; None in others.
    checkpointer: saves the state.
    writer: writes metrics.
    is_new: whether the run does not continue from a checkpoint of its own.
    time_use: counts what the time of the run is used for.
    folder: for files that grow, such as profiles: that of the run if it is
      local, else one that is copied to it.
    options: of the run.
    print_line: prints a line for the user.
  """

  program: program.TaskProgram
  data: dataset_inputs.Inputs
  first: first_batch.FirstBatch
  ahead: compiling_ahead.AheadOfTime
  position: input_position.InputPosition
  lock: job_lock.Lock | None
  checkpointer: checkpoints.Checkpointer
  writer: metric_writers.MetricWriter
  is_new: bool
  time_use: time_use.TimeUse
  folder: pathlib.Path
  options: run_options.RunOptions
  print_line: Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Actions:
  """The actions of a run, in the order in which they follow a step.

  Attributes:
    counter: counts steps and reports them.
    guard: checks that numbers are finite.
    measures: evaluate and decode.
    update_schedules: updates schedules that depend on evaluations.
    stop_early: stops the run, depending on evaluations.
    others: take profiles and collect garbage.
    save: saves: before evaluations if it is due, or else after everything, so
      that a checkpoint records what was done.
  """

  counter: step_counter.StepCounter
  guard: numbers_guard.NumbersGuard
  measures: tuple[evaluation_actions.Measure, ...]
  update_schedules: actions.UpdateSchedules
  stop_early: actions.StopEarly
  others: tuple[actions.Action, ...]
  save: saving.Save | saving.LeaveUnsaved

  def __call__(self, context: actions.StepContext):
    """Calls all actions."""
    self.counter(context)
    self.guard(context)
    self.evaluate(context)
    self.finish(context)

  def finish(self, context: actions.StepContext):
    """Calls those after evaluations; again, if the run stops after the step."""
    for action in (*self.others, self.save):
      action(context)

  def evaluate(self, context: actions.StepContext):
    """Evaluates and decodes, if it is scheduled.

    If that fails, the step is saved before the error is raised.
    """
    if any(action.is_scheduled(context) for action in self.measures):
      self.save.before_measuring(context)
    try:
      for action in (*self.measures, self.update_schedules, self.stop_early):
        action(context)
    except (Exception, SystemExit) as e:
      self.save.after_failure(context, e)
      raise


class Trainer:
  """Makes the steps of a run, and calls its actions after each."""

  def __init__(self, run: Run):
    self._run = run
    self._config = run.program.task.train
    self._rows = agreement.ReplicaRowCheck(run.data.train)
    self._compiled: dict[str, float] = {}
    self._stop = stopping.Stop()
    self._began = time.monotonic()
    self._watchdog = watchdog.current()

  def run(
    self,
    state: program.TrainState,
    *,
    start: int,
    evaluations_pending: bool,
    measured: dict[str, dict[str, float]] | None = None,
  ):
    """Trains from step `start` to the last, then evaluates on everything.

    Args:
      state: the state after `start` steps; it is donated.
      start: number of steps made before.
      evaluations_pending: whether step `start` has yet to be evaluated.
      measured: scalars of evaluations of step `start`, for schedules that
        depend on them; None if the state takes account of them already.

    Raises:
      Stopped: the run was asked to stop.
    """
    run = self._run
    context = actions.StepContext(
      step=start,
      is_last_step=start >= self._config.num_train_steps,
      is_stopping=False,
      state=state,
    )
    saves_first = run.options.saves_initial_state and run.is_new
    input_state = run.position.get_state() if saves_first else None
    with contextlib.ExitStack() as stack:
      batches = stack.enter_context(self._prefetcher(start))
      made = self._actions(start, batches, stack)
      stack.enter_context(self._stop)
      if saves_first:
        made.save.before_first_step(context, input_state)
      if measured:
        made.update_schedules.update(context, measured)
      if evaluations_pending:
        made.evaluate(context)
        if run.options.saves_checkpoints:
          run.checkpointer.amend(start, saving.outcome(context))
      if not context.is_last_step_of_run:
        with run.time_use.of(time_use.TRAINING):
          context = self._train(context, batches, made)
      made.counter.flush()
      made.guard.flush()
      with run.time_use.of(time_use.SAVING):
        run.checkpointer.wait()
    if self._compiled:
      logging.info('time: %s', run.time_use)
    self._finish(context)

  def _prefetcher(self, start: int) -> prefetching.Prefetcher:
    """Returns the prefetcher of the training batches after step `start`."""
    data = self._run.data.train
    return prefetching.Prefetcher(
      pipeline.Pipeline(
        pipeline.stages(
          data,
          put=self._run.program.put_to_train,
          rows=self._rows,
          check=self._run.first.check,
          get_state=self._run.position.get_state,
        ),
        sources.Source(data, first_step=start + 1),
      ),
      stop=self._stop,
      check=data.raise_if_broken,
      interrupt=data.interrupt,
    )

  def _train(
    self,
    start: actions.StepContext,
    batches: prefetching.Prefetcher,
    made: _Actions,
  ) -> actions.StepContext:
    """Makes the steps after `start`; returns the context of the last one."""
    for action in made.others:
      action(start)
    context = start
    try:
      for context in self._steps(start.state, start.step, batches):
        made(context)
    except stopping.Interrupted:  # While the next batch was awaited.
      context.is_stopping = True
      if context.batch is not None:  # Else no step was made.
        made.finish(context)
    return context

  def _finish(self, context: actions.StepContext):
    """Prints a last line, or raises if the run is not complete."""
    if not context.is_last_step_of_run:
      raise errors.UserError(
        f'the training input {self._run.data.train.name!r} ended at step'
        f' {context.step}, before step {self._config.num_train_steps}; expected'
        ' one that repeats'
      )
    if context.is_stopping and (
      context.evaluations_pending or not context.is_last_step
    ):
      raise Stopped(
        context.step,
        self._stop.number,
        is_saved=self._run.checkpointer.last_saved == context.step,
      )
    if self._compiled:
      self._run.print_line(self._done(context.step))

  def _done(self, step: int) -> str:
    """Returns the last line of a run."""
    folder = pathlib.Path(self._run.checkpointer.directory).parent
    took = progress_lib.format_seconds(time.monotonic() - self._began)
    line = (
      f'done: {step} steps in {took}, train step compiled for'
      f' {len(self._compiled)} shape(s); the run is in {folder}'
    )
    if self._run.options.writes_summaries:
      line += f'; curves: tensorboard --logdir={folder / "summaries"}'
    return line

  def _steps(self, state, start, batches) -> Iterator[actions.StepContext]:
    """Makes the steps, and yields a context after each."""
    self._await_compilation()
    inflight = collections.deque()
    limit = self._config.max_inflight_steps
    for step, batch in enumerate(batches, start + 1):
      self._watchdog.alive('step %d begins', step)
      with_summaries = np.bool_(
        progress_report.has_summaries(self._config, step, start)
      )
      if with_summaries:
        self._rows.check(batch.rows_digest)
      is_new = batch.shapes not in self._compiled
      with (
        self._compilation(batch.shapes),
        jax.profiler.StepTraceAnnotation('train', step_num=step),
      ):
        state, outputs = self._run.program.train_step(
          state, batch.arrays, with_summaries
        )
      if limit:
        inflight.append(outputs)
      if len(inflight) > limit:
        jax.block_until_ready(inflight.popleft())
      context = actions.StepContext(
        step=step,
        is_last_step=step >= self._config.num_train_steps,
        is_stopping=self._stop.is_asked(),
        state=state,
        outputs=outputs,
        batch=batch,
        compile_seconds=self._compiled[batch.shapes] if is_new else 0.0,
      )
      yield context
      state = context.state
      if context.is_last_step_of_run:
        return

  def _await_compilation(self):
    """Awaits the train step that is compiled since the run began."""
    ahead = self._run.ahead
    with self._run.time_use.of(time_use.COMPILATION):
      seconds = ahead.wait()
    if seconds is not None:
      self._record(ahead.shapes, seconds)

  @contextlib.contextmanager
  def _compilation(self, shapes: str) -> Iterator[None]:
    """Logs and times the compilation of the train step for new shapes."""
    if shapes in self._compiled:
      yield
      return
    number = len(self._compiled) + 1
    logging.info('compiling the train step (shape %d): %s', number, shapes)
    began = time.monotonic()
    with self._run.time_use.of(time_use.COMPILATION):
      yield
    self._record(shapes, time.monotonic() - began)

  def _record(self, shapes: str, seconds: float):
    self._compiled[shapes] = seconds
    logging.info('compiled shape %d in %.1f s', len(self._compiled), seconds)

  def _actions(
    self, start: int, batches: prefetching.Prefetcher, stack
  ) -> _Actions:
    """Returns the actions.

    Args:
      start: number of steps made before.
      batches: the training batches.
      stack: closes actions after the last step.
    """
    run = self._run
    progress = progress_lib.Progress(
      self._config.num_train_steps,
      start_step=start,
      rate_steps=self._config.compute_steps_per_sec_interval_steps,
      peak_flops=self._peak_flops(),
    )
    common = dict(
      task_program=run.program,
      progress=progress,
      writer=run.writer,
      print_line=run.print_line,
    )
    report = progress_report.Report(
      **common,
      other_metrics=lambda: {
        **run.data.train.input_metrics(),
        **run.time_use.metrics(),
      },
    )
    counter = step_counter.StepCounter(
      progress=progress,
      report=report,
      num_infeed_hosts=run.program.batch_sharding.num_infeed_hosts,
      asynchronous=self._config.async_summary_writing,
      max_inflight_steps=self._config.max_inflight_steps,
      flops=self._flops(),
      alive=self._watchdog.alive,
    )
    stack.enter_context(counter)
    common |= dict(
      folder=run.folder,
      before=counter.flush,
      stop=self._stop,
      spent=run.time_use,
    )
    guard = numbers_guard.NumbersGuard(
      run.program,
      policy=run.options.on_nan,
      spike_factor=run.options.loss_spike_factor,
      input_name=run.data.train.name,
      last_saved=lambda: run.checkpointer.last_saved,
    )
    return _Actions(
      counter=counter,
      guard=guard,
      measures=(
        evaluation_actions.Evaluate(run.data.eval, peek=batches.peek, **common),
        evaluation_actions.Decode(run.data.decode, **common),
      ),
      update_schedules=actions.UpdateSchedules(run.program),
      stop_early=actions.StopEarly(
        self._early_stopping_fn(),
        checkpoint_path=run.checkpointer.directory,
        print_line=run.print_line,
      ),
      others=self._others(start, stack),
      save=self._save(counter, guard),
    )

  def _early_stopping_fn(self) -> Callable[..., Any] | None:
    own = self._run.program.task.create_early_stopping_fn()
    change = self._run.options.early_stopping
    return own if change is None else change(own)

  def _peak_flops(self) -> float | None:
    """Returns the peak of all devices; None if it is not known."""
    mesh = self._run.program.mesh
    peak = self._run.options.peak_flops
    if peak is None:
      peak = model_flops.peak_of(mesh.devices.flat[0].device_kind)
    return None if peak is None else peak * mesh.size

  def _flops(self) -> Callable[[pipeline.DeviceBatch], float | None]:
    """Returns a function that counts the FLOPs of the step of a batch."""
    if self._peak_flops() is None:  # Nobody asks for them.
      return lambda batch: None
    return model_flops.by_shapes(self._run.program)

  def _others(self, start: int, stack) -> tuple[actions.Action, ...]:
    config, others = self._config, []
    after_step = self._run.program.model.after_step()
    if after_step is not None:
      others.append(actions.CallModel(after_step))
    if config.profiler_capture_step is not None:
      profile = profiling.Profile(
        folder=self._run.folder / 'summaries' / 'train',
        first_step=start + config.profiler_capture_step + 1,
        num_steps=config.profiler_num_steps,
        min_seconds=config.profiler_min_duration_sec,
        max_num_hosts=config.profiler_max_num_hosts,
        of_host=config.profiler_capture_host_profile,
      )
      others.append(actions.TakeProfile(stack.enter_context(profile)))
    if config.gc_interval_steps:
      garbage = actions.CollectGarbage(config.gc_interval_steps)
      others.append(stack.enter_context(garbage))
    return tuple(others)

  def _save(
    self,
    counter: step_counter.StepCounter,
    guard: numbers_guard.NumbersGuard,
  ) -> saving.Save | saving.LeaveUnsaved:
    """Returns the action that saves."""

    def may_save(context):
      if self._run.lock is not None:
        self._run.lock.check()
      return guard.may_save(context)

    options = self._run.options
    if not options.saves_checkpoints:
      return saving.LeaveUnsaved(counter.flush)
    limits = [options.save_interval_seconds]
    if not self._config.save_interval_steps:
      limits.append(self._config.save_interval_seconds)
    return saving.Save(
      self._run.checkpointer,
      steps=self._config.save_interval_steps,
      seconds=min((x for x in limits if x is not None), default=None),
      before=counter.flush,
      may_save=may_save,
      of_input=self._run.position.to_save,
      print_line=self._run.print_line,
      spent=self._run.time_use,
    )
