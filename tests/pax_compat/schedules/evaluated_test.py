"""Schedules that depend on evaluations: in a learner, and in a run."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, learners, optimizers, schedules
from pax_compat.schedules import evaluated
from tests.pax_compat import trainer_runs
from tests.pax_compat.learners import stepping
from tests.pax_compat.trainer import lines


class Halving(schedules.EvaluatedSchedule):
  """Halves with each evaluation.

  Attributes:
    split: of the evaluations.
  """

  split: str = 'eval_dev'

  def initial_state(self):
    return {'factor': np.float32(1)}

  def next_state(self, state, step, measured):
    if self.split not in measured:
      return state
    assert 'loss' in measured[self.split] and step % 2 == 0
    return {'factor': state['factor'] / 2}

  def value_of(self, state):
    return jnp.asarray(state['factor'])


def _optimizer(**fields):
  # Momentum includes the learning rate.
  return optimizers.RmsProp.config(
    learning_rate=1.0, lr_schedule=Halving.config(**fields)
  )


def test_a_learner_keeps_its_state():
  weights = {'w': np.ones([2], np.float32)}
  learner = stepping.learner(
    cls=learners.MultiOptimizerLearner,
    optimizer=_optimizer(),
    auxiliary_optimizers=[_optimizer(key='other', split='eval_test')],
    auxiliary_regex=['params/w'],
    auxiliary_names=['w'],
  )
  state = stepping.init(learner, weights)
  measured = {'eval_test': {'loss': 1.0}}
  for step, rate in ((2, 0.5), (4, 0.25)):
    state = learner.after_evaluations(state, step, measured)
    _, state, metrics = stepping.step(learner, weights, weights, state)
    assert float(metrics['learning/lr_main']) == 1.0
    assert float(metrics['learning/lr_w']) == rate


def test_different_schedules_need_different_keys():
  one, other = (Halving.config(split=split) for split in ('eval_a', 'eval_b'))
  assert list(evaluated.schedules_within([one, one])) == ['evaluated']
  with pytest.raises(errors.UserError, match='in two schedules'):
    evaluated.schedules_within([one, other])


def test_a_run_that_continues(tmp_path):
  for last in (4, 6):
    task = lines.task(
      num_train_steps=last,
      eval_interval_steps=2,
      eval_skip_train=True,
      summary_interval_steps=1,
    )
    task.train.learner.optimizer = _optimizer()
    lines.Lines(task).train(tmp_path)
  found = trainer_runs.metrics(tmp_path)
  rates = [found[step, 'train', 'learning/lr'] for step in range(1, 7)]
  assert rates == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
