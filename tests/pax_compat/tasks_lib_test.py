"""Tests of task configs."""

import doctest

import pytest

from pax_compat import base_metrics, errors, learners, tasks_lib
from pax_compat import config as config_lib
from tests.pax_compat.trainer import lines

NESTED = [
  'Train',
  'Decode',
  'Evaluate',
  'Infer',
  'VariationalNoise',
]


def test_the_example():
  found = doctest.testmod(tasks_lib, optionflags=doctest.ELLIPSIS)
  assert found.attempted and not found.failed


def test_a_task_needs_a_model():
  with pytest.raises(errors.UserError, match='SingleTask.model is required'):
    tasks_lib.SingleTask.config().Instantiate()


def test_a_model_is_a_config():
  task = tasks_lib.SingleTask.config(model=lines.Line)
  with pytest.raises(errors.UserError, match='model is .*expected the config'):
    task.Instantiate()


def test_defaults():
  task = lines.task().Instantiate()
  assert task.train.learner.cls is learners.Learner
  assert task.create_loss_aggregator().loss_name == 'loss'
  assert isinstance(task.create_metrics(), base_metrics.MeanMetrics)
  assert task.create_early_stopping_fn() is None
  assert task.loss_aggregator_inst.loss_name == 'loss'
  assert task.metrics_aggregator is task.metrics_aggregator
  assert not task.has_ema_decay


def test_two_tasks_share_no_template():
  one, other = tasks_lib.SingleTask.config(), tasks_lib.SingleTask.config()
  one.train.learner.loss_name = 'mine'
  assert other.train.learner.loss_name is None


def test_a_typo_deep_in_a_task_names_its_class():
  task = tasks_lib.SingleTask.config()
  with pytest.raises(errors.UserError, match='Train has no.*num_train_steps'):
    task.train.num_train_step = 3


@pytest.mark.parametrize('name', NESTED)
def test_both_spellings_of_settings_are_one_class(name):
  nested = getattr(tasks_lib.SingleTask, name)
  assert nested is getattr(tasks_lib, name)
  assert nested.HParams().cls is nested


def test_settings_are_checked_with_the_task():
  task = lines.task()
  task.decode = tasks_lib.SingleTask.Decode.HParams(profiler_capture_step=0)
  with pytest.raises(errors.UserError, match='Decode.profiler_capture_step'):
    task.Instantiate()


def test_settings_of_inference():
  writer = tasks_lib.SingleTask.InferWriter
  assert writer is tasks_lib.InferWriter
  task = lines.task()
  assert task.Instantiate().create_infer_writer() is None
  task.infer_writer = writer.HParams(output_num_shards=2)
  assert task.Instantiate().create_infer_writer().output_num_shards == 2
  for wrong, message in (
    (tasks_lib.Infer.HParams(), 'SingleTask.infer_writer is a Infer; expected'),
    (writer.config(output_format='csv'), "output_format is 'csv'; expected"),
    (writer.config(output_num_shards=0), 'output_num_shards is 0; expected'),
  ):
    task.infer_writer = wrong
    with pytest.raises(errors.UserError, match=message):
      task.Instantiate()


def test_the_loss_is_named_once():
  task = lines.task()
  task.loss_aggregator = base_metrics.LossAggregator.HParams(loss_key='a')
  assert task.Instantiate().create_loss_aggregator().loss_key == 'a'
  task.train.learner.loss_name = 'b'
  with pytest.raises(
    errors.UserError, match=r"Learner.loss_name \('b'\) are both set; ex"
  ):
    task.Instantiate()
  task.loss_aggregator = None
  assert task.Instantiate().create_loss_aggregator().loss_key == 'b'


class Never(config_lib.Configurable):
  """An early stopping function with a setting."""

  answer: bool = False

  def __call__(self, *unused):
    return self.answer


def test_the_early_stopping_function_may_be_a_config():
  task = lines.task()
  task.early_stopping_fn = Never.config(answer=True)
  assert task.Instantiate().create_early_stopping_fn()() is True
  task.early_stopping_fn = lambda *unused: False
  assert task.Instantiate().create_early_stopping_fn()() is False
  task.early_stopping_fn = 'never'
  with pytest.raises(errors.UserError, match="is 'never'; expected a function"):
    task.Instantiate()
