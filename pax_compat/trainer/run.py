"""A training run from its first line to its last."""

import collections
import contextlib
import functools
import itertools
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

import jax
from absl import logging

from pax_compat import (
  base_experiment,
  checkpoints,
  errors,
  job_dir,
  metric_writers,
  tasks_lib,
)
from pax_compat import progress as progress_lib
from pax_compat.trainer import (
  actions,
  feeding,
  inputs,
  partitioning,
  program,
  reports,
)

# Steps that may be under way on the devices at once.
_MAX_INFLIGHT_STEPS = 2


class Stopped(Exception):  # noqa: N818 (it is no error)
  """The run was asked to stop and did, after saving. Says at which step.

  Attributes:
    signal_number: of the signal that asked.
  """

  def __init__(self, step: int, signal_number: int):
    super().__init__(f'stopped after step {step}, which is saved')
    self.signal_number = signal_number


def train(
  experiment: base_experiment.BaseExperiment,
  *,
  name: str,
  job_log_dir: str,
  say: Callable[[str], None] = logging.info,
):
  """Trains an experiment to its last step, from its newest checkpoint if any.

  Args:
    experiment: the experiment.
    name: its name; a folder belongs to one name.
    job_log_dir: the folder of the run.
    say: takes the lines that the user reads.

  Raises:
    UserError: something of the experiment, its data or the folder is not as it
      must be. Nothing of an earlier run is overwritten.
    Stopped: SIGTERM or SIGINT came. The state is saved.
  """
  folder = pathlib.Path(job_log_dir)
  task = experiment.task()
  datasets = experiment.datasets()
  config = task.train.Instantiate()
  with contextlib.ExitStack() as stack:
    data = stack.enter_context(inputs.Inputs(datasets))
    job_dir.claim(folder, name)
    checkpointer = checkpoints.Checkpointer(
      folder / 'checkpoints', max_to_keep=config.save_max_to_keep
    )
    stack.callback(checkpointer.close)
    start = checkpointer.latest_step() or 0
    if start >= config.num_train_steps:
      say(f'all {start} steps are done already')
      return
    data.train.resume_at(start)
    first_batch = data.train.get_next()
    mesh = partitioning.create_mesh(
      task.model.ici_mesh_shape, task.model.mesh_axis_names
    )
    task_program = program.create(task, mesh, first_batch)
    sharding = partitioning.batch_sharding(mesh)
    partitioning.check_batch(first_batch, sharding)
    state, extra = _first_state(
      task_program, checkpointer, start, first_batch, say
    )
    reports.write(
      folder,
      task=task,
      datasets=datasets,
      program=task_program,
      dumps=experiment.dumps(),
    )
    writer = metric_writers.MetricWriter(folder, resume_step=start)
    stack.callback(writer.close)
    trainer = Trainer(
      config=config,
      task_program=task_program,
      data=data,
      checkpointer=checkpointer,
      writer=writer,
      say=say,
    )
    trainer.run(
      state,
      start=start,
      first_batch=first_batch,
      evaluations_due=extra.get(actions.EVALUATIONS_DUE, False),
    )


def _first_state(task_program, checkpointer, start, batch, say):
  """Returns the state to start from, and what its checkpoint says beside it."""
  if start:
    restored = checkpointer.restore(start, task_program.abstract_state)
    say(f'continues from the checkpoint of step {start}')
    return restored
  count = reports.num_parameters(task_program)
  say(f'starts with {count:,} new parameters')
  return task_program.init_state(batch), {}


class Trainer:
  """Takes a state through its steps, and does what is due after each."""

  def __init__(
    self,
    *,
    config: tasks_lib.Train,
    task_program: program.TaskProgram,
    data: inputs.Inputs,
    checkpointer: checkpoints.Checkpointer,
    writer: metric_writers.MetricWriter,
    say: Callable[[str], None],
  ):
    self._config = config
    self._program = task_program
    self._data = data
    self._checkpointer = checkpointer
    self._writer = writer
    self._say = say
    self._put = functools.partial(
      partitioning.global_batch,
      sharding=partitioning.batch_sharding(task_program.mesh),
    )
    self._compiled: dict[str, float] = {}

  def run(
    self,
    state: program.TrainState,
    *,
    start: int,
    first_batch,
    evaluations_due: bool,
  ):
    """Trains from step `start` to the last, then evaluates on everything.

    Args:
      state: the state after `start` steps; it is donated.
      start: steps that were made before.
      first_batch: the first batch, on the host.
      evaluations_due: whether evaluations of step `start` are still to make.

    Raises:
      Stopped: the run was asked to stop.
    """
    progress = progress_lib.Progress(
      self._config.num_train_steps, start_step=start
    )
    report, evaluate, save = self._actions(progress)
    if evaluations_due:
      evaluate.evaluate_if_due(start, state.mdl_vars, is_last=False)
    batches = itertools.chain([first_batch], _forever(self._data.train))
    feeder = feeding.Feeder(batches.__next__, self._put)
    moment = None
    with feeder, _stop_signal() as stop:
      for moment in self._moments(state, start, feeder, stop):
        for action in (report, evaluate, save):
          action(moment)
    self._checkpointer.wait()
    if moment is None or not moment.ends:
      raise errors.UserError(
        f'the training input {self._data.train.name!r} ended at step'
        f' {moment.step if moment else start}, before step'
        f' {self._config.num_train_steps}; expected one that repeats'
      )
    if moment.is_stopping:
      raise Stopped(moment.step, stop[0])
    self._say(f'compiled the train step for {len(self._compiled)} shape(s)')

  def _moments(self, state, start, feeder, stop) -> Iterator[actions.Moment]:
    """Makes the steps, and yields where the run stands after each."""
    inflight = collections.deque()
    for step, fed in enumerate(feeder, start + 1):
      began = time.monotonic()
      state, metrics = self._program.train_step(state, fed.arrays)
      self._note_compilation(fed.shapes, time.monotonic() - began)
      inflight.append(metrics)
      if len(inflight) > _MAX_INFLIGHT_STEPS:
        jax.block_until_ready(inflight.popleft())
      is_last = step >= self._config.num_train_steps
      moment = actions.Moment(
        step=step,
        is_last=is_last,
        is_stopping=bool(stop) and not is_last,
        state=state,
        metrics=metrics,
        fed=fed,
      )
      yield moment
      if moment.ends:
        return

  def _note_compilation(self, shapes: str, seconds: float):
    if shapes not in self._compiled:
      self._compiled[shapes] = seconds
      logging.info(
        'shape %d of the train step took %.1f s to compile: %s',
        len(self._compiled),
        seconds,
        shapes,
      )

  def _actions(self, progress) -> tuple[actions.Action, ...]:
    common = dict(progress=progress, writer=self._writer, say=self._say)
    report = actions.Report(
      every=self._config.summary_interval_steps,
      loss_name=self._program.learner.loss_name,
      **common,
    )
    return (
      report,
      actions.Evaluate(
        self._data.eval,
        every=self._config.eval_interval_steps,
        during=self._config.eval_during_training,
        task_program=self._program,
        put=self._put,
        before=report.flush,
        **common,
      ),
      actions.Save(
        self._checkpointer,
        steps=self._config.save_interval_steps,
        seconds=self._config.save_interval_seconds,
        before=report.flush,
      ),
    )


def _forever(data) -> Iterator:
  while True:
    try:
      yield data.get_next()
    except StopIteration:
      return


@contextlib.contextmanager
def _stop_signal() -> Iterator[list[int]]:
  """Yields a list that gets the number of a SIGTERM or SIGINT when one comes.

  The second signal has its usual effect. Where several processes run, each
  would stop at a step of its own, so signals are left alone there.
  """
  caught: list[int] = []
  if jax.process_count() > 1 or (
    threading.current_thread() is not threading.main_thread()
  ):
    yield caught
    return
  usual = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}

  def stop(number, frame):
    del frame
    logging.info('got signal %d: saves after this step and stops', number)
    caught.append(number)
    signal.signal(number, usual[number])

  for number in usual:
    signal.signal(number, stop)
  try:
    yield caught
  finally:
    for number, handler in usual.items():
      signal.signal(number, handler)
