"""Jobs that evaluate and decode the checkpoints of a run.

A job is a process of its own, or several, and only reads the checkpoints. It
has its own files in the folder, so that training and other jobs can run
meanwhile:

    eval_metrics.jsonl            scalars of `--mode=eval`
    eval_steps.json               which checkpoints are done, see `done_steps`
    eval_log.txt                  its log, see `run_log`
    eval.lock                     while a job runs
    summaries/eval_test_<name>    event files for TensorBoard
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import logging

from pax_compat import errors
from pax_compat.experiments import resolved
from pax_compat.jobs import inference_job, opening, reading
from pax_compat.jobs.done_steps import DoneSteps
from pax_compat.jobs.following import Follower
from pax_compat.jobs.job_options import INFER, JobOptions
from pax_compat.jobs.measuring import Measuring
from pax_compat.jobs.watching import Watch
from pax_compat.metrics import metric_writers
from pax_compat.processes import first_process, watchdog
from pax_compat.runs import job_lock, mirror, run_log
from pax_compat.trainer import early_checks, loop, run_options, stopping
from pax_compat.trainer.feeding import prefetching

_DEFAULT_OPTIONS = run_options.RunOptions()


class Stopped(loop.Stopped):
  """The job was asked to stop, and stopped.

  Attributes:
    signal_number: number of the signal that asked.
  """

  def __init__(self, signal_number: int, *, again: str):
    Exception.__init__(self, f'stopped; {again}')
    self.signal_number = signal_number


def run(
  experiment: resolved.ResolvedExperiment,
  *,
  job_log_dir: str,
  job: JobOptions,
  options: run_options.RunOptions = _DEFAULT_OPTIONS,
  print_line: Callable[[str], None] = logging.info,
  log: run_log.RunLog | None = None,
):
  """Runs a job to its end.

  Args:
    experiment: the experiment; a folder belongs to one name.
    job_log_dir: the folder that the job writes to, of the run that it follows
      unless `job` has another one.
    job: what the job does.
    options: of the run; those of summaries matter here.
    print_line: prints a line for the user.
    log: what was logged before, for the log of the job; None for nothing.

  Raises:
    UserError: the experiment, its data, the folder or a checkpoint is invalid.
    Stopped: SIGTERM or SIGINT arrived.
  """
  with contextlib.ExitStack() as stack:
    log = log or stack.enter_context(run_log.RunLog())
    print_line = log.printing(print_line)
    stack.enter_context(prefetching.patience(options.input_timeout_seconds))
    stop = stack.enter_context(stopping.Stop())
    opened = stack.enter_context(
      opening.opened(experiment, job_log_dir=job_log_dir, job=job, stop=stop)
    )
    for line in opened.lines:
      print_line(line)
    try:
      if job.mode == INFER:
        with _watching(options):
          inference_job.run(opened, print_line=print_line)
      else:
        early_checks.check(opened.program, opened.data)
        made = _Job(opened, options=options, print_line=print_line, log=log)
        made.run(stack)
    except stopping.Interrupted:
      again = 'the same command continues with what is not done yet'
      if not job.follows:
        again = 'the same command begins again'
      raise Stopped(stop.number, again=again) from None


class _Job:
  """A job that evaluates or decodes."""

  def __init__(
    self,
    opened: opening.Opened,
    *,
    options: run_options.RunOptions,
    print_line: Callable[[str], None],
    log: run_log.RunLog,
  ):
    self._opened = opened
    self._log = log
    self._options = options
    self._print_line = print_line
    self._watch: Watch = opened.watch
    self._follows = opened.job.follows
    # One record for both ways to decode: what one has done is done.
    self._kind = opened.job.mode.partition('_')[0]
    self._done: DoneSteps | None = None
    self._writer: metric_writers.MetricWriter | None = None
    self._used: list[int] = []

  def run(self, stack: contextlib.ExitStack):
    """Uses all checkpoints.

    Args:
      stack: closes what the job opens.
    """
    folder = self._opened.folder
    first_process.result_of(
      lambda: self._claim(stack), f'cannot use {folder} for this job'
    )
    self._grown = stack.enter_context(mirror.Mirror(folder))
    self._measuring = Measuring(
      task_program=self._opened.program,
      data=self._opened.data,
      folder=self._grown.local,
      stop=self._opened.stop,
    )
    is_first = jax.process_index() == 0
    log_name = f'{self._kind}_{run_log.FILE}'
    if is_first:
      self._grown.fetch(self._metrics_name)
      self._grown.fetch(log_name)
    stack.enter_context(
      self._log.kept(
        self._grown.local,
        name=log_name,
        is_first_process=is_first,
        expected=(stopping.Interrupted,),
      )
    )
    stack.callback(self._close)
    steps = self._following() if self._follows else self._given()
    for step in steps:
      self._used.append(step)
    self._finish()

  def _claim(self, stack: contextlib.ExitStack):
    """Takes the lock of such jobs, and reads what they have done."""
    folder = self._opened.folder
    stack.enter_context(job_lock.held(folder, self._kind))
    self._done = DoneSteps(folder / f'{self._kind}_steps.json')

  @property
  def _metrics_name(self) -> str:
    return f'{self._kind}_metrics.jsonl'

  def _following(self) -> Iterator[int]:
    """Yields the steps of the checkpoints that were used, as they come."""
    self._follower = Follower(
      self._watch,
      is_done=self._is_done,
      last_step=self._opened.program.task.train.num_train_steps,
      stop=self._opened.stop,
      print_line=self._print_line,
    )
    for step in self._follower:
      digest = self._digest(step)
      try:
        mdl_vars = reading.read(self._opened.program, self._watch, step)
      except reading.UnreadableError as e:
        if jax.process_index() == 0:
          self._follower.give_up(step, digest, str(e))
        continue
      self._begin(step, digest)
      self._measure(step, digest, mdl_vars)
      del mdl_vars  # Before the next ones are read.
      yield step

  def _given(self) -> Iterator[int]:
    """Yields the steps of the requested checkpoints, all anew."""
    steps = self._opened.job.steps or (opening.newest(self._watch),)
    if self._done is not None:
      self._done.forget(steps, self._measuring.splits)
    for step in steps:
      digest = self._digest(step)
      mdl_vars = reading.read(self._opened.program, self._watch, step)
      self._measure(step, digest, mdl_vars)
      yield step

  def _digest(self, step: int) -> str:
    return self._watch.digest(step) if jax.process_index() == 0 else ''

  def _is_done(self, step: int, digest: str) -> bool:
    splits = self._measuring.splits
    return all(self._done.has(step, digest, split) for split in splits)

  def _begin(self, step: int, digest: str):
    """Drops what was written for an earlier checkpoint of a step, if any."""
    if self._done is None or not self._done.replaced(step, digest):
      return
    self._print_line(
      f'the checkpoint of step {step} is another one than before: what was'
      ' written for this step and later ones is replaced'
    )
    self._done.forget_from(step)
    self._close()
    self._writer = self._new_writer(resume_step=step, measures_again=True)

  def _measure(self, step: int, digest: str, mdl_vars: Any):
    """Evaluates and decodes what is not done, and records each split."""
    for split in self._measuring.splits:
      if not self._is_needed(step, digest, split):
        continue
      with _watching(self._options, at_end=self._grown.copy):
        values, line = self._measuring.measure(split, step, mdl_vars)
      if self._writer is None:
        self._writer = self._new_writer()
      self._writer.write_values(step, split, values)
      self._print_line(line)
      if self._done is not None:
        self._grown.copy()  # What is recorded as written must be there.
        self._done.add(step, digest, split)

  def _is_needed(self, step: int, digest: str, split: str) -> bool:
    """Returns whether a split is to be written; process 0 decides for all."""
    has = self._done is not None and self._done.has(step, digest, split)
    return bool(first_process.value_of(int(not has)))

  def _new_writer(self, **resume: Any) -> metric_writers.MetricWriter:
    """Returns the writer of the metrics, without lines that are not done."""
    done = self._done
    return metric_writers.MetricWriter(
      self._grown.local,
      writes_events=self._options.writes_summaries,
      only_scalars=self._options.only_scalars,
      json_lines_name=self._metrics_name,
      is_stale=lambda step, split: (step, split) not in done,
      **resume,
    )

  def _close(self):
    if self._writer is not None:
      self._writer.close()
      self._writer = None

  def _finish(self):
    """Prints what was done; raises a UserError if a checkpoint is damaged."""
    done = f'{self._opened.verb} {_number(self._used)}'
    if not self._used:
      done = f'{self._opened.verb} no checkpoint, as all were before'
    if not self._follows:
      self._print_line(f'{done}; metrics are in {self._where}')
      return
    counts = self._follower.counts
    if counts.deleted:
      done += f', {len(counts.deleted)} deleted before'
    self._print_line(
      f'training has ended; {done}; metrics are in {self._where}'
    )
    if not first_process.value_of(len(counts.damaged)):
      return
    lines = [f'step {s}: {why}' for s, why in counts.damaged.items()]
    if jax.process_index():  # Process 0 knows which.
      lines = ['see the log of process 0']
    raise errors.UserError(
      f'{_number(list(counts.damaged))} could not be read:\n  '
      + '\n  '.join(lines)
    )

  @property
  def _where(self) -> Any:
    return self._opened.folder / self._metrics_name


def _watching(options: run_options.RunOptions, **at_end):
  """Returns a context that ends the process if a batch hangs."""
  return watchdog.watching(
    options.step_timeout_seconds,
    input_seconds=options.input_timeout_seconds,
    **at_end,
  )


def _number(steps: list[int]) -> str:
  if len(steps) == 1:
    return f'the checkpoint of step {steps[0]}'
  return f'{len(steps) or "some"} checkpoints'
