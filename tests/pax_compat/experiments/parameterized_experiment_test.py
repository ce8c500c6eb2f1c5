"""Experiments whose configs are arguments."""

import doctest

import pytest

from pax_compat import base_input, tasks_lib
from pax_compat.config import Config, InvalidConfigError
from pax_compat.experiments import parameterized_experiment, resolved

TRAIN = base_input.BaseInput.config(name='train', is_training=True)
DEV = base_input.BaseInput.config(name='dev')


def _config(**fields):
  return Config(
    parameterized_experiment.ParameterizedExperiment,
    task=tasks_lib.SingleTask.config(name='lm'),
    **fields,
  )


def test_examples():
  found = doctest.testmod(parameterized_experiment)
  assert found.attempted and not found.failed


def test_all_arguments():
  specs = base_input.DatasetInputSpecsProvider.config(input_p=TRAIN)
  made = _config(
    training_dataset=TRAIN,
    eval_datasets=[DEV],
    decode_datasets=[DEV],
    input_specs_provider=specs,
  ).Instantiate()
  assert made.datasets() == [*made.train_datasets(), *made.eval_datasets()]
  assert [d.name for d in made.decode_datasets()] == ['dev']
  assert made.training_dataset().name == 'train'
  assert made.get_input_specs_provider_params() == specs


def test_datasets_are_optional():
  made = _config().Instantiate()
  assert made.datasets() == made.decode_datasets() == []
  assert made.get_input_specs_provider_params() is None


@pytest.mark.parametrize(
  ('field', 'dataset'),
  [
    ('train_datasets', DEV),
    ('eval_datasets', TRAIN),
    ('decode_datasets', TRAIN),
    ('decoder_datasets', TRAIN),
  ],
)
def test_training_datasets_are_marked(field, dataset):
  with pytest.raises(InvalidConfigError, match=f'{dataset.name}.*expected'):
    _config(**{field: [dataset]}).Instantiate()


def test_a_derived_class_is_an_experiment():
  class Mine(parameterized_experiment.ParameterizedExperiment):
    def __init__(self):
      super().__init__(
        task=tasks_lib.SingleTask.config(name='lm'), train_datasets=[TRAIN]
      )

  found = resolved.resolve(Mine(), name='Mine')
  assert found.task.name == 'lm'
  assert [d.name for d in found.train_datasets] == ['train']
