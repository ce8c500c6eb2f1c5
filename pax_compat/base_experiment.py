"""What an experiment is: a task, its data, and nothing built yet."""

import abc

from pax_compat import config as config_lib


class BaseExperiment(abc.ABC):
  """The task and the datasets of one experiment.

  Both are configs. Subclasses keep their settings as class attributes, so that
  a derived experiment changes one by assigning it.
  """

  @abc.abstractmethod
  def task(self) -> config_lib.Config:
    """Returns the config of the task."""

  @abc.abstractmethod
  def datasets(self) -> list[config_lib.Config]:
    """Returns one `BaseInput` config for each dataset.

    Exactly one has `is_training`; names are unique.
    """

  def train_datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the task is trained on."""
    return [d for d in self.datasets() if d.is_training]

  def eval_datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the task is evaluated on while it trains."""
    return [d for d in self.datasets() if not d.is_training]

  def decode_datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that are decoded while the task is trained.

    One `BaseInput` config for each, names unique among them; none by default.
    How often is the task's `train.decode_interval_steps`.
    """
    return []

  def get_input_specs_provider_params(self) -> config_lib.Config | None:
    """Returns the config of what knows the shapes of training batches.

    The object that it builds has a method `get_input_specs`, which returns a
    `jax.ShapeDtypeStruct` for each field of a batch of one process. The first
    batch is held against it (unless `train.enforce_input_specs` is off). None,
    the default, takes the first batch as it comes.
    """
    return None

  def validate(self):  # noqa: B027 (most have nothing to check)
    """Raises a UserError if settings contradict each other.

    Called before anything is built. By default there is nothing to check.
    """

  def dumps(self) -> dict[str, str]:
    """Returns texts to keep in the run's folder, by file name.

    Beside the configs, which are always kept; for example the settings that the
    configs were made from.
    """
    return {}
