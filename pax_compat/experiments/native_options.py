"""The options of native experiments, each of which is a flag."""

import dataclasses

from pax_compat import base_experiment, errors
from pax_compat import config as config_lib
from pax_compat.experiments import dataset_fields, options, subclassed

_FIELD = 'tfds_data_dir'


@dataclasses.dataclass(frozen=True)
class NativeOptions(options.Options):
  """Where native experiments read their data."""

  KIND = 'native'

  tfds_data_dir: str | None = options.option(
    None,
    'Folder of the TFDS datasets that SeqIO inputs read, instead of the'
    " experiment's own.",
  )

  def applied(
    self, experiment: base_experiment.BaseExperiment
  ) -> base_experiment.BaseExperiment:
    """Returns the experiment, or a copy of it with what the options change.

    Raises:
      UserError: by `datasets()` of the copy, if no dataset reads TFDS.
    """
    if self.tfds_data_dir is None:
      return experiment
    return _with_data_dir(experiment, self.tfds_data_dir)


def _with_data_dir(
  experiment: base_experiment.BaseExperiment, folder: str
) -> base_experiment.BaseExperiment:
  """Returns a copy of an experiment whose inputs read another folder."""

  def changed(configs: list[config_lib.Config], *, required: bool = False):
    configs = [config.clone() for config in configs]
    counts = [dataset_fields.set_in(x, _FIELD, folder) for x in configs]
    if required and not any(counts):
      raise errors.UserError(
        f'--{_FIELD}: none of the datasets'
        f' {", ".join(config.name for config in configs)} is a SeqIO input;'
        f' expected an input that has the field {_FIELD}'
      )
    return configs

  class WithDataDir(type(experiment)):
    """The experiment with another data folder."""

    def datasets(self):
      return changed(super().datasets(), required=True)

    def decode_datasets(self):
      return changed(super().decode_datasets())

  return subclassed.copied_as(WithDataDir, experiment)
