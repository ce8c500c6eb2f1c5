"""Configs of SeqIO inputs for the metrics of each task."""

import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input import (
  converters,
  eval_configs,
  input_adaptor,
)
from pax_compat import errors
from tests.adaptors.seqio_input import metric_tasks as tasks

PREDICT = eval_configs.MetricType.PREDICT
SCORE = eval_configs.MetricType.SCORE
LENGTHS = {'inputs': 16, 'targets': 24, 'hints': 8}


@pytest.fixture(name='mixture', scope='module')
def _mixture():
  """Returns a mixture of tasks with different metrics."""
  metrics = lingvo_runtime.seqio().metrics
  passes = metrics.PassthroughLegacyMetric.from_metric_fn(tasks.accuracy)
  return tasks.mixture(
    'mixed',
    [
      tasks.add('mixed_none'),
      tasks.add('mixed_predicts', metric_fns=[tasks.accuracy]),
      tasks.add('mixed_scores', metric_fns=[tasks.mean_score]),
      tasks.add('mixed_object', metric_objs=[passes]),
    ],
  )


def _configs(what, metric_type, **fields):
  return eval_configs.get_eval_hparams_for_seqio(
    what,
    batch_size=4,
    feature_lengths=LENGTHS,
    seed=3,
    metric_type=metric_type,
    **fields,
  )


def _names(configs):
  return [config.name for config in configs]


def test_each_task_with_metrics_has_a_config(mixture, log):
  assert _names(_configs('mixed', PREDICT)) == [
    'mixed_object',
    'mixed_predicts',
  ]
  assert "SeqIO task 'mixed_none' is left out: no PREDICT metric" in log()
  assert _names(_configs(mixture, SCORE)) == ['mixed_scores']
  assert len(_configs(mixture, SCORE, require_metric_fns=False)) == 4


def test_predictions_want_whole_targets_for_metrics_only(mixture):
  config = _configs('mixed_predicts', PREDICT)[0]
  assert config.task_feature_lengths == {'inputs': 16, 'targets': 1}
  assert config.eval_metrics_targets_length == 24
  scored = _configs('mixed_scores', SCORE)[0]
  assert scored.task_feature_lengths == {'inputs': 16, 'targets': 24}
  assert scored.eval_metrics_targets_length is None
  assert scored.feature_converter.weights_on_targets_only is True
  kept = _configs('mixed_predicts', PREDICT, pass_entire_feature_lengths=True)
  assert kept[0].task_feature_lengths == LENGTHS | {'targets': 1}


def test_fields_reach_the_input(mixture):
  config = _configs(
    'mixed_scores',
    SCORE,
    split_name=lambda task: {'mixed_scores': 'test'}[task],
    num_infeed_hosts=2,
    eval_loop_num_batches=3,
  )[0]
  made = config.Instantiate()
  assert isinstance(made, input_adaptor.SeqIOInput)
  assert made.split_name == 'test' and made.batch_size == 4
  assert made.num_infeed_hosts == 2 and made.eval_loop_num_batches == 3
  assert made.reset_for_eval and made.input_random_seed == 3
  assert made.mixture_or_task_inst.name == 'mixed_scores'
  made.close()
  converter = converters.SequenceModelFeatures()
  given = _configs('mixed_scores', SCORE, feature_converter=converter)[0]
  assert isinstance(given.feature_converter, converters.SequenceModelFeatures)


def test_tasks_without_the_split_are_left_out(mixture, log):
  def split(task):
    return 'test' if task == 'mixed_object' else 'dev'

  found = _configs(mixture, PREDICT, split_name=split, check_split_exists=True)
  assert _names(found) == ['mixed_object']
  assert "'mixed_predicts' is left out: no split 'dev'" in log()
  assert len(_configs(mixture, PREDICT, split_name='dev')) == 2


def test_invalid_arguments(mixture):
  with pytest.raises(errors.UserError, match="'mixd'.*mixed"):
    _configs('mixd', PREDICT)
  with pytest.raises(errors.UserError, match="'decode'; expected MetricType.P"):
    _configs('mixed', 'decode')
  with pytest.raises(errors.UserError, match="has inputs; .* 'targets' among"):
    eval_configs.get_eval_hparams_for_seqio(
      'mixed', 4, {'inputs': 3}, 1, PREDICT
    )
