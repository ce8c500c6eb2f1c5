"""The metrics of SeqIO tasks, against SeqIO's own Evaluator."""

import functools
import itertools
import random

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input import converters, eval_configs
from adaptors.seqio_input.metrics import task_metrics
from adaptors.seqio_input.reading import host_rows
from pax_compat import errors
from tests.adaptors.seqio_input import metric_tasks as tasks

COUNT = 11
GOOD = [tasks.accuracy, tasks.edits, tasks.mean_score]
BAD = [tasks.broken, tasks.broken_score]
KINDS = {
  'decode': eval_configs.MetricType.PREDICT,
  'eval': eval_configs.MetricType.SCORE,
}


@pytest.fixture(name='truth', scope='module')
def _truth():
  """Returns SeqIO's metrics of the same answers and scores, by kind."""
  seqio = lingvo_runtime.seqio()
  tasks.add('only_good', metric_fns=GOOD)
  evaluator = seqio.Evaluator(
    'only_good',
    seqio.EncDecFeatureConverter(pack=False),
    async_compute_metrics=False,
  )
  vocabulary = seqio.ByteVocabulary()
  # Rows of one length, as the Evaluator makes an array of them.
  tokens = np.zeros([COUNT, 40], np.int32)
  for i in range(COUNT):
    encoded = vocabulary.encode(tasks.prediction(i))
    tokens[i, : len(encoded)] = encoded
  found, _ = evaluator.evaluate(
    compute_metrics=True,
    predict_fn=lambda data: [(i, tokens[i]) for i in reversed(range(COUNT))],
    score_fn=lambda data: [(i, tasks.score(i)) for i in range(COUNT)],
  )
  values = {
    name: getattr(value, 'value', value)
    for name, value in found.result()['only_good'].items()
  }
  scores = ('mean_score', 'weighted')
  return {
    'decode': {k: v for k, v in values.items() if k not in scores},
    'eval': {k: values[k] for k in scores},
  }


def _add_good_and_bad():
  tasks.add('good_and_bad', metric_fns=[*BAD, *GOOD], metric_objs=['no metric'])


def _config(task, kind, **fields):
  (config,) = eval_configs.get_eval_hparams_for_seqio(
    task,
    batch_size=2,
    feature_lengths={'inputs': 16, 'targets': 40},
    seed=1,
    metric_type=KINDS[kind],
  )
  return config.set(**fields)


def _hosts(config, count):
  return [
    config.clone()
    .set(num_infeed_hosts=count, infeed_host_index=host)
    .Instantiate()
    for host in range(count)
  ]


def _evaluated(inputs):
  """Returns the rows of all hosts with weight 1, with model outputs.

  The model finds out by reading the row which question is asked.
  """
  vocabulary = lingvo_runtime.seqio().ByteVocabulary()
  examples = []
  for data in inputs:
    batches = iter(data.get_next, None)
    limit = data.eval_loop_num_batches
    for batch in _until_the_end(itertools.islice(batches, limit)):
      flat = {k: v for k, v in batch.items() if isinstance(v, np.ndarray)}
      host = {k: v for k, v in flat.items() if data.is_host_field(k, v)}
      for row in np.flatnonzero(batch.eval_sample_weights):
        text = vocabulary.decode(batch.ids[row].tolist())
        number = tasks.number_in(text)
        output = {
          'decoded_substr': tasks.prediction(number),
          'scores': tasks.score(number),
        }
        examples.append(({k: v[row] for k, v in host.items()}, output))
    if data.reset_for_eval:
      data.reset()
  random.Random(0).shuffle(examples)
  return examples


def _until_the_end(batches):
  try:
    yield from batches
  except StopIteration:
    return


def _close(inputs):
  for data in inputs:
    data.close()


@pytest.mark.parametrize('kind', ['decode', 'eval'])
@pytest.mark.parametrize('hosts', [1, 3])
def test_metrics_are_those_of_seqio_on_any_number_of_hosts(truth, kind, hosts):
  _add_good_and_bad()
  inputs = _hosts(_config('good_and_bad', kind), hosts)
  assert inputs[0].has_example_metrics(kind)
  name = {'decode': 'broken', 'eval': 'broken_score'}[kind]
  for _ in range(2):  # Two evaluations.
    examples = _evaluated(inputs)
    assert len(examples) == COUNT
    found = inputs[0].example_metrics(kind, examples)
    assert found.pop(f'{name}/failed') == 1.0
    assert found.pop('str/failed') == 1.0
    assert found.pop('num_failed_metrics') == 2.0
    assert found == truth[kind]
  _close(inputs)


def test_a_metric_that_fails_is_named(log):
  _add_good_and_bad()
  (data,) = _hosts(_config('good_and_bad', 'decode'), 1)
  found = data.example_metrics('decode', _evaluated([data]))
  assert "metric failed: broken, of the dataset 'good_and_bad'" in log()
  assert found['examples'] == COUNT and found['num_failed_metrics'] == 2.0
  data.close()


@pytest.mark.parametrize('hosts', [1, 3])
def test_only_evaluated_examples_count(hosts):
  tasks.add('only_good', metric_fns=GOOD)
  fields = dict(eval_loop_num_batches=1)
  inputs = _hosts(_config('only_good', 'decode', **fields), hosts)
  found = inputs[0].example_metrics('decode', _evaluated(inputs))
  want = tasks.accuracy(
    [(tasks.answer(i).lower(), '') for i in range(2 * hosts)],
    [tasks.prediction(i).lower() for i in range(2 * hosts)],
  )
  assert found['examples'] == 2 * hosts
  assert {name: found[name] for name in want} == want
  _close(inputs)


def test_the_next_batches_have_the_next_targets():
  tasks.add('only_good', metric_fns=GOOD)
  fields = dict(eval_loop_num_batches=2, reset_for_eval=False)
  inputs = _hosts(_config('only_good', 'decode', **fields), 1)
  for start in (0, 4, 8):
    numbers = [i % COUNT for i in range(start, start + 4)]
    found = inputs[0].example_metrics('decode', _evaluated(inputs))
    want = tasks.accuracy(
      [(tasks.answer(i).lower(), '') for i in numbers],
      [tasks.prediction(i).lower() for i in numbers],
    )
    assert {name: found[name] for name in want} == want
  _close(inputs)


def test_missing_and_repeated_examples_are_refused():
  tasks.add('only_good', metric_fns=GOOD)
  (data,) = _hosts(_config('only_good', 'decode'), 1)
  examples = _evaluated([data])
  index = int(examples[0][0][host_rows.INDEX])
  with pytest.raises(errors.UserError, match=rf'1 without an .* \({index}\)'):
    data.example_metrics('decode', examples[1:])
  with pytest.raises(errors.UserError, match=rf'1 with several .* \({index}\)'):
    data.example_metrics('decode', [*examples, examples[0]])
  with pytest.raises(
    errors.UserError, match="'decoded_substr' of .* returns sc"
  ):
    data.example_metrics(
      'decode', [(host, {'scores': 1}) for host, _ in examples]
    )
  data.close()


def test_without_examples_there_are_no_metrics():
  tasks.add('empty', count=0, metric_fns=GOOD)
  (data,) = _hosts(_config('empty', 'decode'), 1)
  assert data.example_metrics('decode', _evaluated([data])) == {}
  data.close()


def test_metrics_of_the_same_name_do_not_hide_each_other(log):
  def other(targets, predictions):
    return {'accuracy': 0.0}

  task = tasks.add('same_name', metric_fns=[tasks.accuracy, other])
  assert task_metrics.names_of(task, 'decode') == ['accuracy', 'other']
  (data,) = _hosts(_config('same_name', 'decode'), 1)
  found = data.example_metrics('decode', _evaluated([data]))
  assert found['accuracy'] > 0 and found['other/failed'] == 1.0
  data.close()


def test_names_of_metrics():
  part = functools.partial(tasks.accuracy)
  task = tasks.add('named', metric_fns=[tasks.accuracy, part, tasks.mean_score])
  assert task_metrics.names_of(task, 'decode') == ['accuracy', 'accuracy_2']
  assert task_metrics.names_of(task, 'eval') == ['mean_score']


def test_a_metric_with_other_arguments_is_refused_before_any_data_is_read():
  def wrong(truths, guesses):
    return {}

  task = tasks.add('wrong_arguments', metric_fns=[wrong])
  config = _config('only_good', 'eval').set(mixture_name=task.name)
  with pytest.raises(
    errors.UserError, match=r"'wrong_arguments': Metric functions must have"
  ):
    config.Instantiate()


def test_inputs_without_metrics_are_logged(log):
  one = tasks.add('only_good', metric_fns=GOOD)
  tasks.mixture('one_task', [one])
  config = _config('only_good', 'eval')
  mixed = config.clone().set(mixture_name='one_task').Instantiate()
  assert not mixed.has_example_metrics('eval')
  assert "the SeqIO mixture 'one_task' has no metrics; those" in log()
  packed = config.clone()
  packed.feature_converter = converters.LanguageModelFeatures.config(
    pack=True, weights_on_targets_only=True
  )
  packed = packed.Instantiate()
  assert not packed.has_example_metrics('eval')
  assert "'only_good' are not computed, as its examples are packed" in log()
  _close([mixed, packed])
