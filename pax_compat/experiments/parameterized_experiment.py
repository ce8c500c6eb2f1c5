"""An experiment whose configs are arguments, so that it has a config itself.

>>> from pax_compat import base_input, tasks_lib
>>> experiment = Config(
...   ParameterizedExperiment,
...   task=tasks_lib.SingleTask.config(name='lm'),
...   train_datasets=[
...     base_input.BaseInput.config(name='train', is_training=True)
...   ],
...   eval_datasets=[base_input.BaseInput.config(name='dev')],
... )
>>> experiment.task.name = 'large'
>>> made = experiment.Instantiate()
>>> made.task().name, [dataset.name for dataset in made.datasets()]
('large', ['train', 'dev'])

To give it a name for `--exp`, register a derived class whose `__init__` passes
the configs.
"""

from collections.abc import Sequence

from pax_compat import base_experiment
from pax_compat.config import Config, InvalidConfigError


class ParameterizedExperiment(base_experiment.BaseExperiment):
  """The experiment of a task and of datasets."""

  def __init__(
    self,
    *,
    task: Config,
    train_datasets: Sequence[Config] = (),
    eval_datasets: Sequence[Config] = (),
    decode_datasets: Sequence[Config] = (),
    input_specs_provider: Config | None = None,
    training_dataset: Config | None = None,
    decoder_datasets: Sequence[Config] = (),
  ):
    """Makes the experiment; nothing is built.

    Args:
      task: config of the task.
      train_datasets: configs of the inputs to train on.
      eval_datasets: of those to evaluate.
      decode_datasets: of those to decode.
      input_specs_provider: see `get_input_specs_provider_params`.
      training_dataset: one more of `train_datasets`; an older name.
      decoder_datasets: more of `decode_datasets`; an older name.

    Raises:
      InvalidConfigError: `is_training` of a dataset does not fit its use.
    """
    super().__init__()
    self._task = task
    last = [] if training_dataset is None else [training_dataset]
    self._train = _checked('train_datasets', [*train_datasets, *last], True)
    self._eval = _checked('eval_datasets', eval_datasets, False)
    self._decode = _checked(
      'decode_datasets', [*decode_datasets, *decoder_datasets], False
    )
    self._input_specs_provider = input_specs_provider

  def task(self) -> Config:
    return self._task

  def datasets(self) -> list[Config]:
    return self._train + self._eval

  def train_datasets(self) -> list[Config]:
    return self._train

  def eval_datasets(self) -> list[Config]:
    return self._eval

  def decode_datasets(self) -> list[Config]:
    return self._decode

  def get_input_specs_provider_params(self) -> Config | None:
    return self._input_specs_provider


def _checked(
  field: str, datasets: Sequence[Config], is_training: bool
) -> list[Config]:
  for dataset in datasets:
    if dataset.is_training != is_training:
      raise InvalidConfigError(
        f'{field} has {dataset.name!r}, whose is_training is'
        f' {dataset.is_training}; expected {is_training}'
      )
  return list(datasets)
