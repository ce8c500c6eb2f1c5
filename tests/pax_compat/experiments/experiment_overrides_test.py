"""Tests of `--set` on experiments."""

import pytest

from pax_compat import errors
from pax_compat.configs import config_text
from pax_compat.experiments import experiment_overrides
from tests.pax_compat.counting_experiment import Counting


def test_every_config_that_an_experiment_returns_has_the_setting():
  experiment, untouched = Counting(), Counting()
  experiment_overrides.override(
    experiment,
    [
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
    ('task.trian.num_train_steps=1', "no field 'trian'; did you mean.*train"),
    ('datasets[5].batch_size=1', 'datasets has 2 elements'),
    ('task.train.num_train_steps', 'expected path=value'),
  ],
)
def test_a_mistake_shows_before_anything_is_built(setting, message):
  with pytest.raises(errors.UserError, match=message):
    experiment_overrides.override(Counting(), [setting])
