"""Tests of `--set` on experiments."""

import pytest

from pax_compat import base_experiment, base_input, errors, tasks_lib
from pax_compat.configs import config_text
from pax_compat.experiments import experiment_overrides
from tests.pax_compat.counting_experiment import Counting


def test_all_configs_have_the_setting():
  untouched = Counting()
  experiment = experiment_overrides.changed(
    untouched,
    settings=[
      'task.train.learner.optimizer.learning_rate=1e-3',
      'datasets[1].batch_size=4',
      'task.train.num_train_steps=7',
    ],
  )
  for _ in range(2):
    task = experiment.task()
    assert task.train.learner.optimizer.learning_rate == 1e-3
    assert task.train.num_train_steps == 7
  assert [d.batch_size for d in experiment.datasets()] == [8, 4]
  assert [d.batch_size for d in experiment.eval_datasets()] == [4]
  difference = config_text.diff(untouched.task(), experiment.task(), 'task')
  assert sorted(
    line.rpartition(' = ')[2] for line in difference.split('\n')
  ) == [
    '',
    '0.001',
    '0.01',
    '12',
    '7',
  ]


@pytest.mark.parametrize(
  ('setting', 'message'),
  [
    ('tsk.train.num_train_steps=1', 'tsk.*begins with task, .*mean.* task'),
    ('tusk.model.x=1', 'did you mean: task.model.x'),
    ('train.num_train_steps=1', 'did you mean: task.train.num_train_steps'),
    ('task.trian.num_train_steps=1', "no field 'trian'; did you mean.*train"),
    ('datasets[5].batch_size=1', 'datasets has 2 elements'),
    ('task.train.num_train_steps', 'expected path=value'),
  ],
)
def test_an_invalid_setting_is_refused_before_the_build(setting, message):
  with pytest.raises(errors.UserError, match=message):
    experiment = experiment_overrides.changed(Counting(), settings=[setting])
    assert experiment.task() and experiment.datasets()


class Mine(base_experiment.BaseExperiment):
  EVALS = ('dev', 'test')
  SHARED = base_input.BaseInput.config(name='train', is_training=True)

  def __init__(self):
    self.calls = []

  def task(self):
    return tasks_lib.SingleTask.config()

  def datasets(self):
    self.calls.append('datasets')
    evals = [base_input.BaseInput.config(name=n) for n in self.EVALS]
    return [self.SHARED, *evals]

  def decode_datasets(self):
    self.calls.append('decode_datasets')
    return self.eval_datasets()

  def get_input_specs_provider_params(self):
    return self.training_dataset()


def test_the_experiment_itself_is_not_changed():
  experiment = Mine()
  changed = experiment_overrides.changed(
    experiment,
    settings=['datasets[0].batch_size=4', 'task.train.num_train_steps=7'],
  )
  assert changed.training_dataset().batch_size == 4
  assert experiment.training_dataset().batch_size is None
  assert experiment.task().train.num_train_steps != 7
  assert type(experiment) is Mine
  assert isinstance(changed, Mine) and type(changed).__name__ == 'Mine'


def test_methods_that_use_the_datasets_get_the_changed_ones():
  changed = experiment_overrides.changed(
    Mine(), settings=['datasets[0].batch_size=4', 'datasets[2].batch_size=5']
  )
  assert changed.get_input_specs_provider_params().batch_size == 4
  assert [d.batch_size for d in changed.decode_datasets()] == [None, 5]


def test_datasets_are_made_once():
  experiment = Mine()
  changed = experiment_overrides.changed(experiment)
  assert experiment.calls == []
  for _ in range(2):
    assert changed.training_dataset().set(batch_size=9).name == 'train'
    assert [d.name for d in changed.eval_datasets()] == ['dev', 'test']
    assert {d.batch_size for d in changed.datasets()} == {None}
    assert [d.name for d in changed.decode_datasets()] == ['dev', 'test']
  assert experiment.calls == ['datasets', 'decode_datasets']


def test_datasets_have_names():
  class Unnamed(Mine):
    def datasets(self):
      return [
        base_input.BaseInput.config(is_training=True),
        base_input.BaseInput.config(),
      ]

  changed = experiment_overrides.changed(Unnamed())
  assert [d.name for d in changed.datasets()] == ['train', 'input']


@pytest.mark.parametrize(
  ('returned', 'wrong'),
  [
    (None, 'datasets.. returns a NoneType'),
    (
      base_input.BaseInput.config(),
      'returns a config of BaseInput; expected a',
    ),
    ([base_input.BaseInput], 'returns a list with a class BaseInput; expected'),
    (['train'], 'returns a list with a str; expected a list of configs, such'),
  ],
)
@pytest.mark.parametrize('method', ['datasets', 'decode_datasets'])
@pytest.mark.parametrize('skip', [False, True])
def test_datasets_are_configs(method, returned, wrong, skip):
  derived = type('Derived', (Mine,), {method: lambda self: returned})
  changed = experiment_overrides.changed(derived(), skip_bad_records=skip)
  with pytest.raises(errors.UserError, match=f'Derived.*{wrong}'):
    getattr(changed, method)()
