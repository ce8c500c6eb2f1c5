"""What an experiment is: a task, its data, and nothing built yet."""

import abc
from typing import Any, Protocol

from pax_compat import config as config_lib
from pax_compat import errors

# Methods of Pax's experiments that are not asked here, and what there is.
_UNSUPPORTED = {
  'partitioner': "a model's ici_mesh_shape says how it is partitioned",
  'train_programs': "the task's `train` says what a step does",
  'eval_programs': 'eval_datasets() says what is evaluated',
  'decode_programs': 'decode_datasets() says what is decoded',
  'executor': "the task's `train` says what is done when",
}


class Start(Protocol):
  """Where a new run starts, if not from new weights; `str` describes it.

  Attributes:
    step: the number of steps that were done elsewhere.
  """

  step: int

  def state(self, program: Any, batch: Any) -> Any:
    """Returns the `trainer.program.TrainState` to start from.

    Args:
      program: the task's `trainer.program.TaskProgram`.
      batch: the first batch of this process.

    Raises:
      UserError: it does not fit the task.
    """


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

  def training_dataset(self) -> config_lib.Config:
    """Returns the one dataset that the task is trained on.

    Raises:
      UserError: there is not exactly one.
    """
    found = self.train_datasets()
    if len(found) != 1:
      raise errors.UserError(
        f'{type(self).__name__}.datasets() has {len(found)} training datasets;'
        ' expected exactly one'
      )
    return found[0]

  def eval_datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the task is evaluated on while it trains."""
    return [d for d in self.datasets() if not d.is_training]

  def decode_datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that are decoded while the task is trained.

    One `BaseInput` config for each, names unique among them; none by default.
    How often is the task's `train.decode_interval_steps`.
    """
    return self.decoder_datasets()

  def decoder_datasets(self) -> list[config_lib.Config]:
    """Returns what `decode_datasets` returns, which is its newer name."""
    return []

  def get_input_specs_provider_params(self) -> config_lib.Config | None:
    """Returns the config of what knows the shapes of training batches.

    The object that it builds has a method `get_input_specs`, which returns a
    `jax.ShapeDtypeStruct` for each field of a batch of one process. The first
    batch is held against it (unless `train.enforce_input_specs` is off). None,
    the default, takes the first batch as it comes.
    """
    return None

  def start(self) -> Start | None:
    """Returns what a run starts from that has no checkpoint of its own.

    None, the default, makes new weights.
    """
    return None

  def validate(self):  # noqa: B027 (most have nothing to check)
    """Raises a UserError if settings contradict each other.

    Called before anything is built. By default there is nothing to check.
    """

  def check_supported(self):
    """Raises a UserError where a method is defined that nothing would call."""
    for name, instead in _UNSUPPORTED.items():
      if hasattr(type(self), name):
        raise errors.UserError(
          f'{type(self).__name__}.{name} is not supported: {instead}'
        )

  def dumps(self) -> dict[str, str]:
    """Returns texts to keep in the run's folder, by file name.

    Beside the configs, which are always kept; for example the settings that the
    configs were made from.
    """
    return {}
