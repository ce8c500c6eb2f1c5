"""Tests of task configs."""

import pytest

from pax_compat import errors, learners, optimizers, tasks_lib
from pax_compat.layers import models


def test_a_task_needs_a_model():
  with pytest.raises(errors.UserError, match='SingleTask.model is required'):
    tasks_lib.SingleTask.config().Instantiate()


def test_defaults_make_a_learner():
  task = tasks_lib.SingleTask.config(model=models.LanguageModel.config())
  learner = task.Instantiate().train.Instantiate().learner.Instantiate()
  assert isinstance(learner, learners.Learner)
  assert isinstance(learner.optimizer.Instantiate(), optimizers.Adam)


def test_two_tasks_share_no_template():
  one, other = tasks_lib.SingleTask.config(), tasks_lib.SingleTask.config()
  one.train.learner.optimizer.learning_rate = 1.0
  assert other.train.learner.optimizer.learning_rate == 0.0


def test_a_typo_deep_in_a_task_names_its_class():
  task = tasks_lib.SingleTask.config()
  with pytest.raises(errors.UserError, match='Train has no.*num_train_steps'):
    task.train.num_train_step = 3
