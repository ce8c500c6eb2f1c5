"""Metric objects of SeqIO tasks, against the functions that they call."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input.metrics import matching, metric_objects
from pax_compat import errors
from tests.adaptors.seqio_input import metric_tasks as tasks

COUNT = 5


@pytest.fixture(name='metrics', scope='module')
def _metrics():
  return lingvo_runtime.seqio().metrics


@pytest.fixture(name='matched')
def _matched():
  """Returns examples of a task with outputs of all kinds."""
  task = tasks.add('for_objects', count=COUNT)
  vocabulary = task.output_features['targets'].vocabulary
  data = task.get_dataset(None, 'test', shuffle=False).as_numpy_iterator()
  outputs = [
    (
      i,
      {
        'decoded_substr': tasks.prediction(i),
        'decoded_ids': np.array(vocabulary.encode(tasks.prediction(i))),
        'length': np.int32(i),
        'scores': tasks.score(i),
      },
    )
    for i in range(COUNT)
  ]
  return matching.match(task, outputs, enumerate(data), name='dev')


def _compute(metric, matched):
  features = tasks.add('for_objects').output_features
  return dict(metric_objects.compute(metric, matched, features))


def _with_aux(targets, predictions, aux_values):
  lengths = np.asarray(aux_values['length'])
  return {
    'aux': float(
      lengths @ [t == p for (t, _), p in zip(targets, predictions, strict=True)]
    )
  }


def _want(function):
  targets = [
    tasks.postprocess(
      tasks.answer(i),
      {'inputs_pretokenized': f'question {i}:'.encode()},
      is_target=True,
    )
    for i in range(COUNT)
  ]
  predictions = [tasks.postprocess(tasks.prediction(i)) for i in range(COUNT)]
  scores = np.array([tasks.score(i) for i in range(COUNT)])
  return {
    tasks.accuracy: lambda: tasks.accuracy(targets, predictions),
    tasks.mean_score: lambda: tasks.mean_score(targets, scores),
    _with_aux: lambda: _with_aux(
      targets, predictions, {'length': np.arange(COUNT)}
    ),
  }[function]()


@pytest.mark.parametrize('is_legacy', [True, False])
@pytest.mark.parametrize(
  'function', [tasks.accuracy, tasks.mean_score, _with_aux]
)
def test_objects_return_the_values_of_their_functions(
  metrics, matched, function, is_legacy
):
  if is_legacy:
    metric = metrics.LegacyMetric.empty(function, tasks.postprocess)
  else:
    metric = metrics.PassthroughLegacyMetric.from_metric_fn(
      function, tasks.postprocess
    )
  kind = 'eval' if function is tasks.mean_score else 'decode'
  assert metric_objects.kind_of(metric) == kind
  assert metric_objects.name_of(metric) == function.__name__
  for _ in range(2):
    assert _compute(metric, matched) == _want(function)


def test_a_class_of_ones_own(metrics, matched):
  class Longest(metrics.CollectingMetric):
    model_output_type = metrics.ModelOutputType.SCORE_WITH_INTERMEDIATES

    def actual_compute(self, examples, features, target_field_name='targets'):
      scores, others = self.values['model_output']
      best = int(np.argmax(others['length']))
      question = examples[best]['inputs_pretokenized'].decode()
      number = tasks.number_in(question)
      return {'score': float(scores[best]), 'number': number}, {}

  assert metric_objects.name_of(Longest) == 'Longest'
  assert _compute(Longest, matched) == {
    'score': float(tasks.score(COUNT - 1)),
    'number': COUNT - 1,
  }


def test_objects_of_unknown_kinds_are_named(metrics, matched):
  assert metric_objects.kind_of('text') is None
  assert metric_objects.name_of('text') == 'str'
  with pytest.raises(
    TypeError, match='model_output_type None; expected one of'
  ):
    _compute('text', matched)

  class Strange:
    model_output_type = metrics.ModelOutputType.PREDICTION

    def from_model_output(self, *args):
      return 3

  with pytest.raises(TypeError, match='made a int; expected a seqio.metrics'):
    _compute(Strange(), matched)


def test_missing_tokens(metrics, matched):
  for output in matched.outputs:
    del output['decoded_ids']
  metric = metrics.PassthroughLegacyMetric.from_metric_fn(_with_aux)
  with pytest.raises(
    errors.UserError, match="tokens as the output 'decoded_ids'"
  ):
    _compute(metric, matched)
