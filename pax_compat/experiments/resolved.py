"""An experiment with its configs made: what the trainer takes.

experiment = experiment_sources.find(name, options)
run.train(
  resolved.resolve(experiment, name=name, settings=['task.train....=7']),
  job_log_dir='/data/run1',
)
"""

import dataclasses
from collections.abc import Mapping, Sequence

from pax_compat import base_experiment
from pax_compat import config as config_lib
from pax_compat.experiments import experiment_overrides

_Configs = tuple[config_lib.Config, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedExperiment:
  """The configs of one experiment, with the changes of the command line.

  Attributes:
    name: the name of the experiment.
    task: the config of the task.
    datasets: the config of each dataset. All of them have names.
    train_datasets: those that the task is trained on.
    eval_datasets: those that the task is evaluated on.
    decode_datasets: the config of each dataset to decode.
    dumps: texts to keep in the folder of the run, by file name.
    experiment: the experiment, which returns these configs.
  """

  name: str
  task: config_lib.Config
  datasets: _Configs
  train_datasets: _Configs
  eval_datasets: _Configs
  decode_datasets: _Configs
  dumps: Mapping[str, str]
  experiment: base_experiment.BaseExperiment = dataclasses.field(repr=False)

  def start(self) -> base_experiment.Start | None:
    """Returns what a run without a checkpoint starts from.

    A run that continues does not ask: what it started from may be gone.
    """
    return self.experiment.start()

  def get_input_specs_provider_params(self) -> config_lib.Config | None:
    """Returns the config of what knows the shapes of training batches.

    Only a task that enforces the shapes asks for it.
    """
    return self.experiment.get_input_specs_provider_params()


def resolve(
  experiment: base_experiment.BaseExperiment,
  *,
  name: str,
  settings: Sequence[str] = (),
  skip_bad_records: bool = False,
) -> ResolvedExperiment:
  """Makes the configs of an experiment, each of them once.

  Args:
    experiment: the experiment. It is not changed.
    name: its name.
    settings: as of `experiment_overrides.changed`.
    skip_bad_records: as of `experiment_overrides.changed`.

  Raises:
    UserError: something of the experiment or of the settings is not as it must
      be.
  """
  experiment.check_supported()
  experiment.validate()
  made = experiment_overrides.changed(
    experiment, settings=settings, skip_bad_records=skip_bad_records
  )
  datasets, decode_datasets = made.datasets(), made.decode_datasets()
  return ResolvedExperiment(
    name=name,
    task=made.task(),
    datasets=tuple(datasets),
    train_datasets=tuple(made.train_datasets()),
    eval_datasets=tuple(made.eval_datasets()),
    decode_datasets=tuple(decode_datasets),
    dumps=made.dumps(),
    experiment=made,
  )
