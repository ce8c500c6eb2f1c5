"""Experiments: the configs of a task and of its datasets.

>>> class Words(BaseExperiment):
...   VOCAB_SIZE = 32_000
...   def task(self):
...     return tasks_lib.SingleTask.config(name=f'lm_{self.VOCAB_SIZE}')
...   def datasets(self):
...     return [
...       base_input.BaseInput.config(name='train', is_training=True),
...       base_input.BaseInput.config(name='dev'),
...     ]

>>> class FewWords(Words):
...   VOCAB_SIZE = 1_000

>>> FewWords().task().name
'lm_1000'
>>> [dataset.name for dataset in FewWords().eval_datasets()]
['dev']
"""

import abc
from typing import Any, Protocol

from pax_compat import config as config_lib
from pax_compat import errors

# Methods of Pax's experiments that are not called here, with the alternative.
_UNSUPPORTED = {
  'partitioner': "a model's ici_mesh_shape defines how it is partitioned",
  'train_programs': "the task's `train` defines what a step does",
  'train_program': "the task's `train` defines what a step does",
  'eval_programs': 'eval_datasets() defines what is evaluated',
  'decode_programs': 'decode_datasets() defines what is decoded',
  'executor': "the task's `train` defines when each action runs",
}


class Start(Protocol):
  """The state that a new run starts from; `str` describes it.

  Attributes:
    step: the number of steps that the state was trained for.
  """

  step: int

  def state(self, program: Any, batch: Any) -> Any:
    """Returns the `trainer.program.TrainState` to start from.

    Args:
      program: the task's `trainer.program.TaskProgram`.
      batch: the first batch of this process.

    Raises:
      UserError: it does not match the task.
    """


class BaseExperiment(abc.ABC):
  """The task and the datasets of one experiment.

  Both are configs; nothing is built. Subclasses keep their settings as class
  attributes, which derived experiments override.
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

    One `BaseInput` config for each, with unique names; none by default. The
    task's `train.decode_interval_steps` is the interval.
    """
    return self.decoder_datasets()

  def decoder_datasets(self) -> list[config_lib.Config]:
    """The older name of `decode_datasets`."""
    return []

  def get_input_specs_provider_params(self) -> config_lib.Config | None:
    """Returns the config of the provider of the shapes of training batches.

    The object that it builds has a method `get_input_specs`, which returns a
    `jax.ShapeDtypeStruct` for each field of a batch of one process. The first
    batch is checked against it (unless `train.enforce_input_specs` is off).
    None, the default, disables the check.
    """
    return None

  def start(self) -> Start | None:
    """Returns the start of a run that does not have a checkpoint.

    None, the default, initializes the weights.
    """
    return None

  def validate(self):  # noqa: B027 (most have nothing to check)
    """Raises a UserError if settings contradict each other.

    Called before anything is built. The default checks nothing.
    """

  def search(self) -> Any:
    """Returns how `--study` searches: an `automl.SearchHParams`. Optional."""
    raise errors.UserError(
      f'{type(self).__name__}.search is not defined; expected a method that'
      ' returns an automl.SearchHParams, or flags of --study'
    )

  def sub_experiments(self) -> dict[str, type['BaseExperiment']]:
    """Pax's experiments of one trial of a search: this one only."""
    return {'': type(self)}

  def check_supported(self):
    """Raises a UserError if a method is defined that is never called."""
    for name, instead in _UNSUPPORTED.items():
      if getattr(type(self), name, None) is not None:
        raise errors.UserError(
          f'{type(self).__name__}.{name} is not supported: {instead}. A class'
          f' derived from it with `{name} = None` runs without it'
        )

  def dumps(self) -> dict[str, str]:
    """Returns the contents of additional files in the run's folder, by name.

    For example, the settings that the configs were made from. The configs
    themselves are always written.
    """
    return {}
