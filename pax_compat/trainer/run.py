"""The set-up of a training run: inputs, folder, checkpoint, program."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import logging

from pax_compat import checkpoints, errors, tasks_lib
from pax_compat.configs import config_text
from pax_compat.experiments import resolved
from pax_compat.metrics import metric_writers
from pax_compat.processes import first_process
from pax_compat.runs import files, job_dir, job_lock, mirror
from pax_compat.trainer import (
  actions,
  compiling_ahead,
  early_checks,
  loop,
  numbers_guard,
  partitioning,
  program,
  run_options,
  saving,
)
from pax_compat.trainer.feeding import (
  dataset_inputs,
  first_batch,
  input_position,
  prefetching,
)
from pax_compat.trainer.reporting import run_folder, start_lines
from pax_compat.warm_start import start as warm_start
from pax_compat.warm_start import transforming

_DEFAULT_OPTIONS = run_options.RunOptions()
# What can be done with a run that has ended.
_INSTEAD = (
  'nothing to train. --mode=eval evaluates its checkpoints, --mode=decode_once'
  ' decodes the last one'
)


def train(
  experiment: resolved.ResolvedExperiment,
  *,
  job_log_dir: str,
  options: run_options.RunOptions = _DEFAULT_OPTIONS,
  print_line: Callable[[str], None] = logging.info,
):
  """Trains an experiment to its last step, from its newest checkpoint if any.

  Args:
    experiment: the experiment; a folder belongs to one name.
    job_log_dir: the folder of the run: a path or a URL `gs://bucket/folder`.
    options: of the run.
    print_line: prints a line for the user.

  Raises:
    UserError: the experiment, its data or the folder is invalid. Nothing of an
      earlier run is overwritten.
    loop.Stopped: SIGTERM or SIGINT arrived. The state is saved.
  """
  folder = job_dir.checked_path(job_log_dir)
  configs = dict(
    task=experiment.task,
    datasets=list(experiment.datasets),
    decode_datasets=list(experiment.decode_datasets),
  )
  with experiment.set_up():
    config_text.check_required(configs)
    task = configs['task'].Instantiate()
    config = task.train
    mesh = partitioning.mesh_of_task(task)
    sharding = partitioning.batch_sharding(mesh, config.inputs_split_mapping)
  decoded = configs['decode_datasets'] if config.decode_interval_steps else []
  demanded = bool(config.enable_input_checkpointing)
  with files.explained(folder), contextlib.ExitStack() as stack:
    stack.enter_context(prefetching.patience(options.input_timeout_seconds))
    set_up = stack.enter_context(experiment.set_up())
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
    stack.enter_context(_claimed(folder, experiment.name))
    lock = stack.enter_context(_lock(folder))
    checkpointer = stack.enter_context(_checkpointer(folder, config, options))
    start, origin, extra = _restore_point(checkpointer, experiment, config)
    pending = bool(extra and extra.get(actions.EVALUATIONS_PENDING))
    finished = _finished(task, start, extra)
    if finished:
      print_line(finished)
      return
    if extra and extra.get(actions.TRAINING_ENDED) and not pending:
      checkpointer.amend(start, {actions.TRAINING_ENDED: False})
    position = input_position.InputPosition(data.train, demanded=demanded)
    position.begin(start, extra)
    first = first_batch.FirstBatch(
      experiment, data.train, enforced=config.enforce_input_specs
    )
    task_program = program.create(
      task,
      mesh,
      first.example,
      skips_nonfinite=options.on_nan == numbers_guard.SKIP,
    )
    early_checks.check(task_program, data, first.example)
    ahead = stack.enter_context(compiling_ahead.started(task_program, first))
    state = _first_state(
      task_program,
      checkpointer,
      start if origin is None and extra is not None else origin,
      first.example,
      print_line,
    )
    start_lines.write(print_line, task_program, first.example)
    dumps = {**experiment.dumps, **_reports(origin)}
    run_folder.write(folder, configs, task_program, dumps, first.example)
    grown = stack.enter_context(mirror.Mirror(folder))
    writer = _writer(grown, options, resume_step=start, measures_again=pending)
    stack.callback(writer.close)
    writer.write_text(start, 'train', 'config', run_folder.markdown(configs))
    run = loop.Run(
      lock=lock,
      program=task_program,
      data=data,
      first=first,
      ahead=ahead,
      position=position,
      checkpointer=checkpointer,
      writer=writer,
      is_new=extra is None,
      folder=grown.local,
      options=options,
      print_line=print_line,
    )
    set_up.done()
    loop.Trainer(run).run(
      state,
      start=start,
      evaluations_pending=pending,
      measured=extra and extra.get(saving.MEASURED),
    )


def _finished(task: tasks_lib.SingleTask, start: int, extra: Any) -> str:
  """Returns why there is nothing to train; '' if there is."""
  pending = extra and extra.get(actions.EVALUATIONS_PENDING)
  if start >= task.train.num_train_steps and not pending:
    return (
      f'all {start} steps are done already; {_INSTEAD}, and'
      f' --set=task.train.num_train_steps={2 * start} goes on training'
    )
  stopped_early = extra and extra.get(actions.STOPPED_EARLY)
  if stopped_early and task.early_stopping_fn is not None:
    return (
      f'the run was stopped early after step {start} already; {_INSTEAD}, and'
      ' --set=task.early_stopping_fn=None goes on training'
    )
  return ''


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
    save_timeout_seconds=options.save_timeout_seconds,
    todelete_subdir=options.checkpoint_todelete_subdir,
  )
  try:
    yield checkpointer
  except BaseException:
    checkpointer.close(alone=True)
    raise
  checkpointer.close()


def _writer(
  grown: mirror.Mirror, options: run_options.RunOptions, **resume: Any
) -> metric_writers.MetricWriter:
  """Returns the writer of the metrics; see `MetricWriter` for `resume`."""
  if jax.process_index() == 0:
    grown.fetch(metric_writers.JSON_LINES)
  return metric_writers.MetricWriter(
    grown.local,
    writes_events=options.writes_summaries,
    only_scalars=options.only_scalars,
    **resume,
  )


def _restore_point(checkpointer, experiment, config):
  """Returns from which step and which source a run starts.

  Returns:
    The number of steps made before; the `base_experiment.Start` to start from,
    None if there is a checkpoint of the run or no such start; and the metadata
    of the checkpoint, None without one.
  """
  step = checkpointer.latest_step()
  if step is not None:
    return step, None, checkpointer.extra(step)
  origin = experiment.start()
  warm = warm_start.of_task(config)
  if origin and warm:
    raise errors.UserError(
      f'the run starts from {origin}, and from {warm}; expected one of them'
    )
  origin = origin or warm
  return origin.step if origin else 0, origin, None


def _first_state(task_program, checkpointer, start, batch, print_line):
  """Returns the state to start from.

  Args:
    task_program: the task's compiled steps.
    checkpointer: of the run.
    start: the step of a checkpoint, or a `base_experiment.Start`; None for new
      weights.
    batch: the first batch, or its shapes.
    print_line: prints a line for the user.
  """
  if start is not None and not isinstance(start, int):
    state = start.state(task_program, batch)
    print_line(f'starts from {start}')
    return state
  if start is not None:
    state = _restored(task_program, checkpointer, start, batch)
    print_line(f'continues from the checkpoint of step {start}')
    return state
  count = run_folder.num_parameters(task_program)
  print_line(f'starts with {count:,} new parameters')
  return task_program.init_state(batch)


def _restored(task_program, checkpointer, step, batch):
  """Returns the state of a checkpoint of the run."""
  train, state = task_program.task.train, task_program.abstract_state
  if train.restore_transformations:
    stored = checkpoints.StoredCheckpoint(checkpointer.directory, step)
    if transforming.needed(train, stored, state):
      return transforming.restore(task_program, stored, batch)
  return checkpointer.restore(step, state)[0]


def _reports(origin: Any) -> dict[str, str]:
  """Returns the file that says what a warm start has loaded."""
  if isinstance(origin, warm_start.Start):
    return {warm_start.FILE: origin.report}
  return {}
