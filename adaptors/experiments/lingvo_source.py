"""The experiment source of Lingvo: an entry point of the core.

What builds experiments is imported when one is asked for: names alone are
listed without it, in under a second.
"""

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import base_experiment, experiment_sources

KIND = LingvoOptions.KIND
OPTIONS = LingvoOptions

claims = lookup.claims
import_module = lookup.import_module
names = lookup.names


def find(
  name: str, options: experiment_sources.SourceOptions
) -> base_experiment.BaseExperiment | None:
  """Returns the Lingvo experiment of that name, or None if it is not Lingvo's.

  The folder of a run, `--lingvo_logdir`, is the name of what it trained.

  Raises:
    UserError: as for `find_model_params`.
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
  base = lingvo_runtime.module('lingvo.core.base_model_params')
  if isinstance(model_params, base.MultiTaskModelParams):
    from adaptors.experiments import lingvo_multi_task

    kind = lingvo_multi_task.LingvoMultiTaskExperiment
  else:
    from adaptors.experiments import lingvo_experiment

    kind = lingvo_experiment.LingvoExperiment
  return kind(name=name, model_params=model_params, options=own)
