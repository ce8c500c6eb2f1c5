"""Opens what a job needs: the experiment's data and program, the checkpoints.

The learner is built, since it determines whether there are moving averages, and
its state is not.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from pax_compat import checkpoints, errors, tasks_lib
from pax_compat import config as config_lib
from pax_compat.checkpoints import stored
from pax_compat.configs import config_text
from pax_compat.experiments import resolved
from pax_compat.jobs.job_options import EVAL, INFER, JobOptions
from pax_compat.jobs.watching import Watch
from pax_compat.runs import job_dir
from pax_compat.trainer import partitioning, program, stopping
from pax_compat.trainer.feeding import batch_shapes, dataset_inputs
from pax_compat.trainer.reporting import start_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
  """What a job needs.

  Attributes:
    job: its options.
    folder: that it writes to.
    watch: the checkpoints that it reads.
    program: the task's compiled steps.
    data: the datasets that it evaluates and decodes.
    stop: whether it is to stop.
    lines: about the job, for the user.
    verb: what the job did, in the past tense.
  """

  job: JobOptions
  folder: Any
  watch: Watch
  program: program.TaskProgram
  data: dataset_inputs.Inputs
  stop: stopping.Stop
  lines: tuple[str, ...]
  verb: str


@contextlib.contextmanager
def opened(
  experiment: resolved.ResolvedExperiment,
  *,
  job_log_dir: str,
  job: JobOptions,
  stop: stopping.Stop,
) -> Iterator[Opened]:
  """Yields what a job needs.

  Args:
    experiment: the experiment.
    job_log_dir: the folder that the job writes to.
    job: its options.
    stop: whether it is to stop.

  Raises:
    UserError: the experiment, its data or the folder is invalid.
  """
  folder = job_dir.answering_path(job_log_dir)
  evaluated, decoded = _datasets(experiment, job)
  config_text.check_required(experiment.configs())
  with experiment.set_up():
    task: tasks_lib.SingleTask = experiment.task.Instantiate()
  job, source = _source(job, task, folder)
  if job.follows or source != folder:
    job_dir.claim(folder, experiment.name)
  else:
    job_dir.check_owner(folder, experiment.name)
    if not folder.exists():
      raise errors.UserError(
        f'{folder} does not exist; expected the folder of a run, with'
        ' checkpoints'
      )
  mesh = partitioning.mesh_of_task(task)
  sharding = partitioning.batch_sharding(mesh, task.train.inputs_split_mapping)
  run = source.parent if source.name == stored.FOLDER else source
  batch = batch_shapes.recorded_or_of(run, experiment)
  with experiment.set_up():
    task_program = program.create(task, mesh, batch)
  averaged = task_program.learner.has_ema
  with dataset_inputs.Inputs(
    evaluated,
    decoded,
    num_infeed_hosts=sharding.num_infeed_hosts,
    infeed_host_index=sharding.infeed_host_index,
    known_ids=task.model.known_ids(task.model_config),
    trains=False,
  ) as data:
    yield Opened(
      job=job,
      folder=folder,
      watch=Watch(run / stored.FOLDER),
      program=task_program,
      data=data,
      stop=stop,
      lines=(
        f'{start_lines.devices()}; mesh {start_lines.mesh_text(mesh.shape)}',
        f'--mode={job.mode}: {", ".join([*data.decode, *data.eval])}, with the'
        f' {"moving averages of the " if averaged else ""}weights of'
        f' {_described(job, run)}',
      ),
      verb='evaluated' if job.mode == EVAL else 'decoded',
    )


def newest(watch: Watch) -> int:
  """Returns the newest step whose files are intact.

  Raises:
    UserError: there is none.
  """
  return checkpoints.StoredCheckpoint(watch.directory).step


def _datasets(
  experiment: resolved.ResolvedExperiment, job: JobOptions
) -> tuple[tuple[config_lib.Config, ...], tuple[config_lib.Config, ...]]:
  """Returns the datasets to evaluate and to decode."""
  evaluates = job.mode == EVAL
  named = 'eval_datasets' if evaluates else 'decode_datasets'
  if not getattr(experiment, named):
    raise errors.UserError(
      f'--mode={job.mode}: {experiment.name} has no {named}(); expected at'
      ' least one dataset'
    )
  if evaluates:
    return experiment.eval_datasets, ()
  if job.also_evaluates and experiment.eval_datasets:
    return experiment.eval_datasets, experiment.decode_datasets
  return (), experiment.decode_datasets


def _source(
  job: JobOptions, task: tasks_lib.SingleTask, folder: Any
) -> tuple[JobOptions, Any]:
  """Returns the options, and the folder of the run with the checkpoints.

  Raises:
    UserError: a folder with a single checkpoint was given.
  """
  given, writer = job.restore_dir, task.create_infer_writer()
  if job.mode == INFER and writer is not None:
    given = given or writer.restore_checkpoint_dir or None
    if not job.steps and writer.restore_checkpoint_step is not None:
      job = dataclasses.replace(job, steps=(writer.restore_checkpoint_step,))
  if given is None:
    return job, folder
  source = job_dir.answering_path(given)
  if source.name.isdigit() and source.parent.name == stored.FOLDER:
    raise errors.UserError(
      f'{source} is one checkpoint; expected the folder of its run,'
      f' {source.parent.parent}, and --restore_checkpoint_step={source.name}'
    )
  return job, source


def _described(job: JobOptions, source: Any) -> str:
  """Returns which checkpoints a job takes."""
  if job.steps:
    which = f'step {", ".join(map(str, job.steps))}'
  else:
    which = 'each new checkpoint' if job.follows else 'the newest checkpoint'
  return f'{which} in {source}'
