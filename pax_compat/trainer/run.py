"""The set-up of a training run: inputs, folder, checkpoint, program."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import logging

from pax_compat import checkpoints, tasks_lib
from pax_compat.configs import config_text
from pax_compat.experiments import resolved
from pax_compat.metrics import metric_writers, time_use
from pax_compat.processes import first_process, watchdog
from pax_compat.runs import (
  files,
  garbage,
  job_dir,
  job_lock,
  mirror,
  run_log,
)
from pax_compat.trainer import (
  compiling_ahead,
  early_checks,
  loop,
  numbers_guard,
  partitioning,
  program,
  run_options,
  starting_point,
)
from pax_compat.trainer.evaluating import decoding
from pax_compat.trainer.feeding import (
  dataset_inputs,
  first_batch,
  input_position,
  prefetching,
)
from pax_compat.trainer.reporting import run_folder, start_lines

_DEFAULT_OPTIONS = run_options.RunOptions()


def train(
  experiment: resolved.ResolvedExperiment,
  *,
  job_log_dir: str,
  options: run_options.RunOptions = _DEFAULT_OPTIONS,
  print_line: Callable[[str], None] = logging.info,
  log: run_log.RunLog | None = None,
):
  """Trains an experiment to its last step, from its newest checkpoint if any.

  Args:
    experiment: the experiment; a folder belongs to one name.
    job_log_dir: the folder of the run: a path or a URL `gs://bucket/folder`.
    options: of the run.
    print_line: prints a line for the user.
    log: what was logged before, for the log of the run; None for nothing.

  Raises:
    UserError: the experiment, its data or the folder is invalid. Nothing of an
      earlier run is overwritten.
    loop.Stopped: SIGTERM or SIGINT arrived. The state is saved.
  """
  spent = time_use.TimeUse()
  folder = job_dir.answering_path(job_log_dir)
  configs = experiment.configs()
  task, mesh, sharding = _task(experiment, configs)
  config = task.train
  with files.explained(folder), contextlib.ExitStack() as stack:
    log = log or stack.enter_context(run_log.RunLog())
    print_line = log.printing(print_line)
    stack.enter_context(prefetching.patience(options.input_timeout_seconds))
    set_up = stack.enter_context(experiment.set_up())
    data = stack.enter_context(_inputs(experiment, task, sharding))
    stack.enter_context(_claimed(folder, experiment.name))
    lock = stack.enter_context(_lock(folder))
    checkpointer = stack.enter_context(_checkpointer(folder, config, options))
    begin = starting_point.find(checkpointer, experiment, config)
    if nothing := begin.nothing_to_train(task, options):
      run_folder.log_changes(folder, config_text.to_text(configs, checked=True))
      print_line(nothing)
      return
    demanded = bool(config.enable_input_checkpointing)
    position = input_position.InputPosition(data.train, demanded=demanded)
    position.begin(begin.step, begin.extra)
    first = first_batch.FirstBatch(
      experiment, data.train, enforced=config.enforce_input_specs
    )
    with garbage.uncollected():
      made = _program(task, mesh, first, data, options)
      ahead = stack.enter_context(compiling_ahead.started(made, first))
      state = begin.state(made, checkpointer, first.example, print_line)
    start_lines.write(print_line, made, first.example)
    dumps = {**experiment.dumps, **begin.reports()}
    text = config_text.to_text(configs, checked=True)
    run_folder.write(folder, text, made, dumps, first.example)
    grown = stack.enter_context(_grown(folder, log, options))
    run = loop.Run(
      lock=lock,
      program=made,
      data=data,
      first=first,
      ahead=ahead,
      position=position,
      checkpointer=checkpointer,
      writer=stack.enter_context(_writer(grown, options, begin, text)),
      is_new=begin.is_new,
      time_use=begin.adds_to(spent),
      folder=grown.local,
      options=options,
      print_line=print_line,
    )
    begin.withdraw_end(checkpointer)
    set_up.done()
    loop.Trainer(run).run(
      state,
      start=begin.step,
      evaluations_pending=begin.evaluations_pending,
      measured=begin.measured,
    )


def _task(
  experiment: resolved.ResolvedExperiment, configs: dict
) -> tuple[tasks_lib.SingleTask, jax.sharding.Mesh, partitioning.BatchSharding]:
  """Returns the task, its mesh, and the sharding of its batches."""
  with experiment.set_up():
    config_text.check_required(configs)
    task = experiment.task.Instantiate()
    if experiment.decode_datasets and task.train.decode_interval_steps:
      decoding.check_settings(task.model_config)
    mesh = partitioning.mesh_of_task(task)
    split = task.train.inputs_split_mapping
    return task, mesh, partitioning.batch_sharding(mesh, split)


def _inputs(
  experiment: resolved.ResolvedExperiment,
  task: tasks_lib.SingleTask,
  sharding: partitioning.BatchSharding,
) -> dataset_inputs.Inputs:
  """Returns the inputs of all datasets that a run uses."""
  train = task.train
  decoded = experiment.decode_datasets if train.decode_interval_steps else ()
  return dataset_inputs.Inputs(
    [*experiment.train_datasets, *experiment.eval_datasets],
    list(decoded),
    num_infeed_hosts=sharding.num_infeed_hosts,
    infeed_host_index=sharding.infeed_host_index,
    input_checkpointing_enabled=bool(train.enable_input_checkpointing),
    known_ids=task.model.known_ids(task.model_config),
  )


def _program(
  task: tasks_lib.SingleTask,
  mesh: jax.sharding.Mesh,
  first: first_batch.FirstBatch,
  data: dataset_inputs.Inputs,
  options: run_options.RunOptions,
) -> program.TaskProgram:
  """Returns the program of a task, which was tried with the first example."""
  skips = options.on_nan == numbers_guard.SKIP
  with first_batch.tried(first.example, data.train):
    made = program.create(task, mesh, first.example, skips_nonfinite=skips)
  early_checks.check(made, data, first.example)
  return made


@contextlib.contextmanager
def _claimed(folder: Any, experiment_name: str) -> Iterator[None]:
  """Within it, the folder is that of the run; a failed start leaves none."""
  is_new = jax.process_index() == 0 and not folder.exists()
  job_dir.claim(folder, experiment_name)
  try:
    yield
  except Exception:
    if is_new:
      job_dir.remove_unused(folder)
    raise


@contextlib.contextmanager
def _lock(folder: Any) -> Iterator[job_lock.Lock | None]:
  """Within it, the run holds the lock of its folder; process 0 has it."""
  with contextlib.ExitStack() as stack:
    lock = None

    def take():
      nonlocal lock
      lock = stack.enter_context(job_lock.held(folder))

    first_process.result_of(take, 'cannot use the folder of the run')
    yield lock


@contextlib.contextmanager
def _checkpointer(
  folder: Any, config: tasks_lib.Train, options: run_options.RunOptions
):
  checkpointer = checkpoints.Checkpointer(
    folder / 'checkpoints',
    max_to_keep=config.save_max_to_keep,
    keep_interval_seconds=config.keep_interval_seconds(),
    keep_interval_steps=config.save_keep_interval_steps,
    save_timeout_seconds=options.save_timeout_seconds,
    todelete_subdir=options.checkpoint_todelete_subdir,
  )
  try:
    yield checkpointer
  except BaseException:
    checkpointer.close(alone=True)
    raise
  checkpointer.close()


@contextlib.contextmanager
def _grown(
  folder: Any, log: run_log.RunLog, options: run_options.RunOptions
) -> Iterator[mirror.Mirror]:
  """Yields the folder for growing files of the run, of which one is its log.

  Within it, a watchdog writes to this log if the run hangs.
  """
  is_first = jax.process_index() == 0
  with mirror.Mirror(folder) as grown:
    if is_first:
      grown.fetch(run_log.FILE)
    with (
      log.kept(
        grown.local, is_first_process=is_first, expected=(loop.Stopped,)
      ),
      watchdog.watching(
        options.step_timeout_seconds,
        input_seconds=options.input_timeout_seconds,
        at_end=grown.copy,
      ),
    ):
      yield grown


@contextlib.contextmanager
def _writer(
  grown: mirror.Mirror,
  options: run_options.RunOptions,
  begin: starting_point.StartingPoint,
  config: str,
) -> Iterator[metric_writers.MetricWriter]:
  """Yields the writer of the metrics of a run that begins there.

  Args:
    grown: writes what a run appends to.
    options: of the run.
    begin: where the run begins.
    config: text of its config, which TensorBoard shows.
  """
  if jax.process_index() == 0:
    grown.fetch(metric_writers.JSON_LINES)
  writer = metric_writers.MetricWriter(
    grown.local,
    writes_events=options.writes_summaries,
    only_scalars=options.only_scalars,
    resume_step=begin.step,
    measures_again=begin.evaluations_pending,
  )
  config = run_folder.markdown(config)
  writer.begin_with_text(begin.step, 'train', 'config', config)
  try:
    yield writer
  finally:
    writer.close()
