"""Resolved experiments: the configs that the trainer takes.

For example:

    experiment = experiment_sources.find(name, options)
    run.train(
      resolved.resolve(
        experiment, name=name, settings=['task.train.num_train_steps=7']
      ),
      job_log_dir='/data/run1',
    )
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pax_compat import base_experiment
from pax_compat import config as config_lib
from pax_compat.experiments import (
  changed_fields,
  class_attributes,
  class_hypers,
  experiment_overrides,
)

_Configs = tuple[config_lib.Config, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedExperiment:
  """The configs of an experiment, with the changes of the command line.

  Attributes:
    name: the name of the experiment.
    task: the config of the task.
    datasets: the configs of all datasets. All of them have names.
    train_datasets: the configs of the datasets to train on.
    eval_datasets: the configs of the datasets to evaluate.
    decode_datasets: the configs of the datasets to decode.
    dumps: the contents of additional files in the run's folder, by name.
    experiment: the experiment, which returns these configs.
    changes: the flags that changed the experiment, for error messages.
  """

  name: str
  task: config_lib.Config
  datasets: _Configs
  train_datasets: _Configs
  eval_datasets: _Configs
  decode_datasets: _Configs
  dumps: Mapping[str, str]
  experiment: base_experiment.BaseExperiment = dataclasses.field(repr=False)
  changes: tuple[str, ...] = ()

  def set_up(self) -> changed_fields.SetUp:
    """Returns a context manager for making the task of the configs."""
    return changed_fields.SetUp(self.changes)

  def configs(self) -> dict[str, Any]:
    """Returns all configs by the roots of their paths."""
    return dict(
      task=self.task,
      datasets=list(self.datasets),
      decode_datasets=list(self.decode_datasets),
    )

  def start(self) -> base_experiment.Start | None:
    """Returns the start of a run that does not have a checkpoint.

    Not called when a run continues: its start may have been deleted.
    """
    return self.experiment.start()

  def get_input_specs_provider_params(self) -> config_lib.Config | None:
    """Returns the config of the provider of the shapes of training batches.

    Called only if the task has `train.enforce_input_specs`.
    """
    return self.experiment.get_input_specs_provider_params()


def resolve(
  experiment: base_experiment.BaseExperiment,
  *,
  name: str,
  settings: Sequence[str] = (),
  attributes: Sequence[str] = (),
  changed_attributes: Sequence[str] = (),
  skip_bad_records: bool = False,
  trains: bool = False,
) -> ResolvedExperiment:
  """Makes each config of an experiment once.

  Args:
    experiment: the experiment. It is not changed.
    name: its name.
    settings: see `experiment_overrides.changed`.
    attributes: changes `NAME=value` of its class attributes, which come before
      the settings; see `class_attributes.changed`.
    changed_attributes: changes of this kind that it has already, for messages.
    skip_bad_records: see `experiment_overrides.changed`.
    trains: whether the training data is read, so that its files must exist.

  Raises:
    UserError: the experiment or a setting is invalid, or a file is missing.
  """
  experiment = class_attributes.changed(experiment, attributes)
  experiment.check_supported()
  class_attributes.require_chosen(type(experiment))
  experiment.validate()
  made = experiment_overrides.changed(
    experiment, settings=settings, skip_bad_records=skip_bad_records
  )
  datasets, decode_datasets = made.datasets(), made.decode_datasets()
  for dataset in made.train_datasets() if trains else ():
    dataset.cls.check_files(dataset)
  task = made.task()
  class_hypers.check_configs(
    dict(task=task, datasets=datasets, decode_datasets=decode_datasets)
  )
  return ResolvedExperiment(
    name=name,
    task=task,
    datasets=tuple(datasets),
    train_datasets=tuple(made.train_datasets()),
    eval_datasets=tuple(made.eval_datasets()),
    decode_datasets=tuple(decode_datasets),
    dumps=made.dumps(),
    experiment=made,
    changes=(
      *(f'--attr={change}' for change in (*changed_attributes, *attributes)),
      *(f'--set={change}' for change in settings),
    ),
  )
