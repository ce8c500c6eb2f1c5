"""Loads the model of a run from its folder."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging

from pax_compat import checkpoints, errors
from pax_compat import config as config_lib
from pax_compat.checkpoints import stored as stored_lib
from pax_compat.cli import recorded_options
from pax_compat.configs import config_text
from pax_compat.experiments import resolved as resolved_lib
from pax_compat.inference import trained_model
from pax_compat.runs import job_dir
from pax_compat.trainer import model_vars, partitioning, program
from pax_compat.trainer.feeding import batch_shapes

_MAX_LISTED = 5  # changed fields that a warning lists
# Fields that may differ between the run and its use.
_FREE = ('.ici_mesh_shape', '.dcn_mesh_shape', '.mesh_axis_names')

MeshShape = Mapping[str, int] | Sequence[int]


def load(
  job_log_dir: str | os.PathLike,
  step: int | None = None,
  *,
  mesh: MeshShape | None = None,
  use_ema: bool | None = None,
  settings: Sequence[str] = (),
  experiment: resolved_lib.ResolvedExperiment | None = None,
) -> trained_model.TrainedModel:
  """Returns the trained model of a run.

  The experiment is found again by what the run's folder has recorded of its
  command line; one that a notebook defines is passed instead. The weights are
  read sharded over the mesh, without the optimizer's state. Nothing in the
  folder is changed, so that the run may still be going on.

  Args:
    job_log_dir: the folder of the run.
    step: of the checkpoint; None for the newest that is intact.
    mesh: number of devices along each axis of the mesh, by name or in the order
      of the model's axes. None for the mesh of the run if it fits the devices
      that there are; otherwise all of them along its axis `data`, or its first.
    use_ema: whether weights are replaced by their moving averages; None for
      `train.eval_use_ema_states` of the task.
    settings: changes of configs, `task.path=value`, after those of the run.
    experiment: the experiment of the run, with all changes; None for the one
      that the folder has recorded.

  Raises:
    UserError: both `settings` and `experiment` are given, the folder is not
      that of a run, its experiment cannot be found, or the checkpoint does not
      exist, is damaged or does not fit.
  """
  folder = job_dir.answering_path(job_log_dir)
  if experiment is None:
    recorded = recorded_options.read(folder)
  elif settings:
    raise errors.UserError(
      'load() got both settings and an experiment; expected the experiment with'
      ' these settings: resolved.resolve(..., settings=...)'
    )
  stored = checkpoints.StoredCheckpoint(folder / stored_lib.FOLDER, step)
  if experiment is None:
    experiment = recorded.resolve(settings=settings)
  _warn_of_changes(folder, experiment)
  config = _on_mesh(experiment.task.clone(), mesh)
  config_text.check_required({'task': config})
  example = batch_shapes.recorded_or_of(folder, experiment)
  with experiment.set_up():
    task = config.Instantiate()
    devices = (
      partitioning.mesh_of_task(task)
      if mesh is None
      else partitioning.mesh_of(task.model)
    )
    task_program = program.create(task, devices, example)
  if use_ema is None:
    use_ema = task.train.eval_use_ema_states
  mdl_vars = model_vars.restore(task_program, stored, use_ema=use_ema)
  logging.info(
    'loaded step %d of %s from %s', stored.step, experiment.name, folder
  )
  return trained_model.TrainedModel(
    experiment=experiment,
    config=config,
    step=stored.step,
    mdl_vars=mdl_vars,
    program=task_program,
    example=example,
  )


def _on_mesh(
  config: config_lib.Config, shape: MeshShape | None
) -> config_lib.Config:
  """Returns the task with a mesh of all devices."""
  model, count = config.model, jax.device_count()
  names = tuple(model.mesh_axis_names or ())
  if shape is None:
    if model.ici_mesh_shape is None or partitioning.num_devices(model) == count:
      return config
    own = names.index('data') if 'data' in names else 0
    sizes = [1] * len(names)
    sizes[own] = count
    logging.info(
      'the mesh of the run has %d devices, and there are %d: all of them are on'
      ' the axis %s',
      partitioning.num_devices(model),
      count,
      names[own],
    )
  elif isinstance(shape, Mapping):
    unknown = [name for name in shape if names and name not in names]
    if unknown:
      raise errors.UserError(
        f'mesh has the axis {unknown[0]!r}; expected axes of the model:'
        f' {", ".join(names)}' + errors.did_you_mean(unknown[0], names)
      )
    names = names or tuple(shape)
    sizes = [shape.get(name, 1) for name in names]
  else:
    sizes = list(shape)
    names = names or ('data',)
  model.set(ici_mesh_shape=sizes, mesh_axis_names=names, dcn_mesh_shape=None)
  return config


def _warn_of_changes(folder: Any, experiment: resolved_lib.ResolvedExperiment):
  """Logs fields of the task that are not as the run has recorded them."""
  path = folder / 'config.txt'
  if not path.exists():
    return
  changed = config_text.changes(
    path.read_text(encoding='utf-8'),
    config_text.to_text({'task': experiment.task}),
    counts=lambda name: name.startswith('task') and not name.endswith(_FREE),
  )
  if changed:
    logging.warning(
      'the experiment %s is not what %s was trained with; %d field(s) differ:'
      ' %s',
      experiment.name,
      folder,
      len(changed),
      '; '.join(changed[:_MAX_LISTED]),
    )
