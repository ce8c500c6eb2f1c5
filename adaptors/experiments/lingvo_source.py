"""The experiment source of Lingvo, an entry point of the core.

The modules that build experiments are imported in `find`, so that listing names
takes less than a second.
"""

import os
from typing import Any

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import base_experiment, errors, experiment_sources
from pax_compat.experiments import class_attributes

KIND = LingvoOptions.KIND
OPTIONS = LingvoOptions
CHANGES_ATTRIBUTES = True  # Of the registered class.

claims = lookup.claims
import_module = lookup.import_module
names = lookup.names
prepare = lookup.mount


def find(
  name: str, options: experiment_sources.SourceOptions
) -> base_experiment.BaseExperiment | None:
  """Returns the Lingvo experiment of a name, or None if there is none.

  The folder of a run, `--lingvo_logdir`, is a name of its experiment.

  Raises:
    UserError: see `find_model_params`.
  """
  own = options.of(LingvoOptions)
  if name == own.lingvo_logdir:
    lookup.mount(options)
    from adaptors.experiments import run_folder

    model_params = run_folder.model_params(name)
  else:
    model_params = lookup.find_model_params(name, options)
  if model_params is None:
    return None
  for flag in ('allow_missing', 'allow_unused'):
    if getattr(own, flag) and not own.lingvo_logdir:
      raise errors.UserError(
        f'--{flag} is of the checkpoint of --lingvo_logdir; expected both, or'
        ' neither'
      )
  model_params = class_attributes.changed(model_params, options.attributes)
  base = lingvo_runtime.module('lingvo.core.base_model_params')
  if isinstance(model_params, base.MultiTaskModelParams):
    from adaptors.experiments import lingvo_multi_task

    kind = lingvo_multi_task.LingvoMultiTaskExperiment
  else:
    from adaptors.experiments import lingvo_experiment

    kind = lingvo_experiment.LingvoExperiment
  return kind(name=name, model_params=model_params, options=own)


def open_checkpoint(path: str | os.PathLike, step: int | None) -> Any:
  """Returns a TensorFlow checkpoint for a warm start, or None.

  Args:
    path: of a run, or of a checkpoint.
    step: of the checkpoint; None for the newest.

  Raises:
    UserError: it is damaged, or does not exist.
  """
  from adaptors.checkpoints import warm_start_source

  return warm_start_source.open_checkpoint(path, step)
