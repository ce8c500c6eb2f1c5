"""A training run from its first line to its last."""

import collections
import contextlib
import functools
import pathlib
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import logging

from pax_compat import checkpoints, errors, tasks_lib
from pax_compat import config as config_lib
from pax_compat.configs import config_text
from pax_compat.experiments import resolved
from pax_compat.metrics import metric_writers
from pax_compat.metrics import progress as progress_lib
from pax_compat.runs import job_dir
from pax_compat.trainer import (
  actions,
  partitioning,
  profiling,
  program,
  stopping,
)
from pax_compat.trainer.evaluating import evaluation_actions
from pax_compat.trainer.feeding import (
  agreement,
  dataset_inputs,
  first_batch,
  input_position,
  prefetching,
)
from pax_compat.trainer.reporting import progress_report, run_folder


class Stopped(Exception):  # noqa: N818 (it is no error)
  """The run was asked to stop and did, after saving. Says at which step.

  Attributes:
    signal_number: of the signal that asked.
  """

  def __init__(self, step: int, signal_number: int):
    super().__init__(f'stopped after step {step}, which is saved')
    self.signal_number = signal_number


def train(
  experiment: resolved.ResolvedExperiment,
  *,
  job_log_dir: str,
  say: Callable[[str], None] = logging.info,
):
  """Trains an experiment to its last step, from its newest checkpoint if any.

  Args:
    experiment: the experiment; a folder belongs to one name.
    job_log_dir: the folder of the run.
    say: takes the lines that the user reads.

  Raises:
    UserError: something of the experiment, its data or the folder is not as it
      must be. Nothing of an earlier run is overwritten.
    Stopped: SIGTERM or SIGINT came. The state is saved.
  """
  folder = pathlib.Path(job_log_dir)
  configs = dict(
    task=experiment.task,
    datasets=list(experiment.datasets),
    decode_datasets=list(experiment.decode_datasets),
  )
  config_text.check_required(configs)
  task = configs['task'].Instantiate()
  config = task.train
  decoded = configs['decode_datasets'] if config.decode_interval_steps else []
  mesh = _mesh(task.model)
  sharding = partitioning.batch_sharding(mesh, config.inputs_split_mapping)
  demanded = bool(config.enable_input_checkpointing)
  with contextlib.ExitStack() as stack:
    data = stack.enter_context(
      dataset_inputs.Inputs(
        [*experiment.train_datasets, *experiment.eval_datasets],
        decoded,
        num_infeed_hosts=sharding.num_infeed_hosts,
        infeed_host_index=sharding.infeed_host_index,
        input_checkpointing_enabled=demanded,
        known_ids=task.model.cls.known_ids(task.model),
      )
    )
    job_dir.claim(folder, experiment.name)
    checkpointer = stack.enter_context(_checkpointer(folder, config))
    start, origin, extra = _beginning(checkpointer, experiment)
    due = extra is not None and extra.get(actions.EVALUATIONS_DUE, False)
    if start >= config.num_train_steps and not due:
      say(f'all {start} steps are done already')
      return
    stopped_early = extra is not None and extra.get(actions.STOPPED_EARLY)
    if stopped_early and task.early_stopping_fn is not None:
      say(f'the run was stopped early after step {start} already')
      return
    position = input_position.InputPosition(data.train, demanded=demanded)
    position.begin(start, extra)
    first = first_batch.FirstBatch(
      experiment, data.train, enforced=config.enforce_input_specs
    )
    partitioning.check_batch(first.example, sharding)
    task_program = program.create(task, mesh, first.example)
    state = _first_state(
      task_program, checkpointer, origin or start, first.example, say
    )
    run_folder.write(folder, configs, task_program, experiment.dumps)
    writer = metric_writers.MetricWriter(
      folder, resume_step=start, measures_again=due
    )
    stack.callback(writer.close)
    trainer = Trainer(
      task_program, data, first, position, checkpointer, writer, folder, say
    )
    trainer.run(state, start=start, evaluations_due=due)


def _mesh(model: config_lib.Config) -> jax.sharding.Mesh:
  return partitioning.create_mesh(
    model.ici_mesh_shape, model.mesh_axis_names, model.dcn_mesh_shape
  )


@contextlib.contextmanager
def _checkpointer(folder: pathlib.Path, config: tasks_lib.Train):
  checkpointer = checkpoints.Checkpointer(
    folder / 'checkpoints',
    max_to_keep=config.save_max_to_keep,
    keep_interval_seconds=config.keep_interval_seconds(),
  )
  try:
    yield checkpointer
  except BaseException:
    checkpointer.close(alone=True)
    raise
  checkpointer.close()


def _beginning(checkpointer, experiment):
  """Returns where a run begins.

  Returns:
    How many steps were made before; the `base_experiment.Start` to begin from,
    None where there is a checkpoint or nothing; and what the checkpoint says
    beside the state, None where there is none.
  """
  step = checkpointer.latest_step()
  if step:
    return step, None, checkpointer.extra(step)
  origin = experiment.start()
  return origin.step if origin else 0, origin, None


def _first_state(task_program, checkpointer, start, batch, say):
  """Returns the state to start from.

  Args:
    task_program: the task's steps.
    checkpointer: of the run.
    start: the step of a checkpoint, or a `base_experiment.Start`.
    batch: the first batch, or its shapes.
    say: takes the line that says which it is.
  """
  if start and not isinstance(start, int):
    state = start.state(task_program, batch)
    say(f'starts from {start}')
    return state
  if start:
    state, _ = checkpointer.restore(start, task_program.abstract_state)
    say(f'continues from the checkpoint of step {start}')
    return state
  count = run_folder.num_parameters(task_program)
  say(f'starts with {count:,} new parameters')
  return task_program.init_state(batch)


class Trainer:
  """Takes a state through its steps, and does what is due after each."""

  def __init__(
    self,
    task_program: program.TaskProgram,
    data: dataset_inputs.Inputs,
    first: first_batch.FirstBatch,
    position: input_position.InputPosition,
    checkpointer: checkpoints.Checkpointer,
    writer: metric_writers.MetricWriter,
    folder: pathlib.Path,
    say: Callable[[str], None],
  ):
    self._config = task_program.task.train
    self._program = task_program
    self._data = data
    self._first = first
    self._position = position
    self._checkpointer = checkpointer
    self._writer = writer
    self._folder = folder
    self._say = say
    self._put = functools.partial(
      partitioning.global_batch, sharding=task_program.batch_sharding
    )
    self._shared = agreement.SharedRows(data.train)
    self._compiled: dict[str, float] = {}
    self._stop = stopping.Stop()

  def run(
    self,
    state: program.TrainState,
    *,
    start: int,
    evaluations_due: bool,
  ):
    """Trains from step `start` to the last, then evaluates on everything.

    Args:
      state: the state after `start` steps; it is donated.
      start: steps that were made before.
      evaluations_due: whether evaluations of step `start` are still to make.

    Raises:
      Stopped: the run was asked to stop.
    """
    moment = actions.Moment(
      step=start,
      is_last=start >= self._config.num_train_steps,
      is_stopping=False,
      state=state,
    )
    with contextlib.ExitStack() as stack:
      feeder = stack.enter_context(
        prefetching.Feeder(
          functools.partial(self._shared.noting, self._first.get_next_padded),
          self._put,
          get_state=self._position.get_state,
          order=self._shared.digest,
          is_host_field=self._data.train.is_host_field,
          stop=self._stop,
          check=self._data.train.raise_if_broken,
          interrupt=self._data.train.interrupt,
        )
      )
      report, measures, others = self._actions(start, feeder, stack)
      stack.enter_context(self._stop)
      if evaluations_due:
        for action in measures:
          action(moment)
        self._checkpointer.amend(start, actions.measures_of(moment))
      if not moment.ends:
        moment = self._train(moment, feeder, report, measures, others)
      report.flush()
      self._checkpointer.wait()
    self._tell_end(moment)

  def _train(self, start, feeder, report, measures, others) -> actions.Moment:
    """Makes the steps after `start`, a moment, and all that is due after each.

    Returns:
      Where the run stands then.
    """
    for action in others:
      action(start)
    save = self._save(report)
    moment = start
    try:
      for moment in self._moments(start.state, start.step, feeder):
        for action in (report, *measures, *others, save):
          action(moment)
    except stopping.Interrupted:  # While it waited for the next batch.
      moment.is_stopping = True
      save(moment)
    return moment

  def _tell_end(self, moment: actions.Moment):
    """Says how the run has ended, or raises where it is not done."""
    if not moment.ends:
      raise errors.UserError(
        f'the training input {self._data.train.name!r} ended at step'
        f' {moment.step}, before step {self._config.num_train_steps}; expected'
        ' one that repeats'
      )
    if moment.is_stopping and (moment.evaluations_due or not moment.is_last):
      raise Stopped(moment.step, self._stop.number)
    if self._compiled:
      self._say(f'compiled the train step for {len(self._compiled)} shape(s)')

  def _moments(self, state, start, feeder) -> Iterator[actions.Moment]:
    """Makes the steps, and yields where the run stands after each."""
    self._compile_ahead()
    inflight = collections.deque()
    limit = self._config.max_inflight_steps
    for step, fed in enumerate(feeder, start + 1):
      began = time.monotonic()
      due = np.bool_(progress_report.is_due(self._config, step, start))
      if due:
        self._shared.check(fed.order)
      with jax.profiler.StepTraceAnnotation('train', step_num=step):
        state, outputs = self._program.train_step(state, fed.arrays, due)
      self._note_compilation(fed.shapes, time.monotonic() - began)
      if limit:
        inflight.append(outputs)
      if len(inflight) > limit:
        jax.block_until_ready(inflight.popleft())
      moment = actions.Moment(
        step=step,
        is_last=step >= self._config.num_train_steps,
        is_stopping=self._stop.is_asked(),
        state=state,
        outputs=outputs,
        fed=fed,
      )
      yield moment
      if moment.ends:
        return

  def _compile_ahead(self):
    """Compiles the train step while the first batch is read."""
    if self._first.is_known_before:
      began = time.monotonic()
      self._program.compile_train_step(self._first.example)
      shapes = prefetching.shapes_of(self._first.example)
      self._note_compilation(shapes, time.monotonic() - began)

  def _note_compilation(self, shapes: str, seconds: float):
    if shapes not in self._compiled:
      self._compiled[shapes] = seconds
      logging.info(
        'shape %d of the train step took %.1f s to compile: %s',
        len(self._compiled),
        seconds,
        shapes,
      )

  def _actions(self, start: int, feeder: prefetching.Feeder, stack):
    """Returns the report, what measures, and what else is done after a step.

    Args:
      start: steps that were made before.
      feeder: gives the training batches.
      stack: what is to be ended after the last step is entered into it.
    """
    progress = progress_lib.Progress(
      self._config.num_train_steps,
      start_step=start,
      rate_steps=self._config.compute_steps_per_sec_interval_steps,
    )
    common = dict(
      task_program=self._program,
      progress=progress,
      writer=self._writer,
      say=self._say,
    )
    report = stack.enter_context(
      progress_report.Report(**common, of_input=self._data.train.input_metrics)
    )
    common |= dict(put=self._put, folder=self._folder, before=report.flush)
    measures = (
      evaluation_actions.Evaluate(
        self._data.eval, peek=feeder.peek, stop=self._stop, **common
      ),
      evaluation_actions.Decode(self._data.decode, stop=self._stop, **common),
      actions.StopEarly(
        self._program.task.create_early_stopping_fn(),
        checkpoint_path=self._folder / 'checkpoints',
        say=self._say,
      ),
    )
    return report, measures, self._others(start, stack)

  def _others(self, start: int, stack) -> list[actions.Action]:
    config, others = self._config, []
    if config.profiler_capture_step is not None:
      profile = profiling.Profile(
        folder=self._folder / 'summaries' / 'train',
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
    return others

  def _save(self, report: progress_report.Report) -> actions.Save:
    return actions.Save(
      self._checkpointer,
      steps=self._config.save_interval_steps,
      seconds=self._config.save_interval_seconds,
      before=report.flush,
      of_input=self._position.to_save,
    )
