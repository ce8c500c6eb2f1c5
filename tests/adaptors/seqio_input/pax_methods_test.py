"""Pax's methods of a SeqIO input, for loops of one's own."""

import itertools

import numpy as np
import pytest

from adaptors.seqio_input import converters, input_adaptor, pax_methods
from adaptors.seqio_input.reading import host_rows
from pax_compat import errors, py_utils
from pax_compat.nested_map import NestedMap
from tests.adaptors.seqio_input import metric_tasks as tasks
from tests.adaptors.seqio_input import tiny_tasks as testing

COUNT = 5


def _eval_input(task, **fields):
  return testing.eval_config(
    task.name,
    task_feature_lengths={'inputs': 16, 'targets': 40},
    feature_converter=converters.LanguageModelFeatures(
      weights_on_targets_only=True
    ),
    **fields,
  )


@pytest.fixture(name='data', scope='module')
def _data():
  task = tasks.add(
    'looped',
    COUNT,
    metric_fns=[tasks.accuracy, tasks.edits, tasks.mean_score],
  )
  return _eval_input(task, log_preprocessed_targets=True).Instantiate()


def _keys(data) -> list[str]:
  """Returns the keys of all rows of an evaluation."""
  data.reset()
  rows = itertools.chain.from_iterable(
    py_utils.tree_unstack(batch, 0) for batch in testing.read(data)
  )
  return [py_utils.get_enumeration_id(row) for row in rows]


def _outputs(keys, name, of_example):
  """Returns a pair for each key; padding rows come last, and have any value."""
  numbers = [*range(COUNT), *[0] * (len(keys) - COUNT)]
  pairs = [
    (key, {name: of_example(number)})
    for key, number in zip(keys, numbers, strict=True)
  ]
  return pairs[::-1]


def test_metrics_of_predictions(data):
  keys = _keys(data)
  assert len(keys) == 6  # With a padding row.
  outputs = _outputs(keys, 'decoded_substr', tasks.prediction)

  accuracy, edits = data.compute_metrics(outputs)

  wrong = sum(number % 2 == 0 for number in range(COUNT))
  assert accuracy == {'accuracy': pytest.approx(1 - wrong / COUNT), 'places': 4}
  assert edits['edits'].value == 3 * wrong
  [_, *real] = outputs  # Without the padding row.
  for number, (_, values) in zip(reversed(range(COUNT)), real, strict=True):
    target, _ = values['seqio_targets']
    assert target == tasks.answer(number).lower()
    assert values['seqio_postprocessed_predictions'] == (
      tasks.prediction(number).lower()
    )


def test_metrics_of_scores(data):
  outputs = _outputs(_keys(data), 'scores', tasks.score)

  [found] = data.compute_metrics(outputs, score_metrics=True)

  scores = [tasks.score(number) for number in range(COUNT)]
  assert found['mean_score'] == pytest.approx(np.mean(scores))
  assert found['weighted'] == pytest.approx(np.dot(scores, range(COUNT)))
  assert all('seqio_preprocessed_targets' in x for _, x in outputs[1:])


def test_without_outputs_or_metrics(data):
  assert data.compute_metrics([]) == []
  plain = _eval_input(tasks.add('plain', metric_fns=[])).Instantiate()
  assert plain.compute_metrics([('any', {'decoded_substr': 'a'})]) == []


def test_outputs_that_do_not_fit(data):
  outputs = _outputs(_keys(data), 'decoded_substr', tasks.prediction)
  with pytest.raises(errors.UserError, match='without an output'):
    data.compute_metrics(outputs[:-1])
  with pytest.raises(errors.UserError, match="'a prompt' is not the key"):
    data.compute_metrics([('a prompt', {'decoded_substr': 'a'})])
  with pytest.raises(errors.UserError, match='plain_text_output'):
    data.compute_metrics(outputs, plain_text_output='file')


def test_keys_of_decoded_outputs():
  decoded = NestedMap(
    {
      host_rows.INDEX: np.array([3, 4, -1]),
      host_rows.SHARD: np.array([0, 0, -1]),
      host_rows.SHARDS: np.array([1, 1, -1]),
      'x': np.ones([3, 2]),
    }
  )
  update = pax_methods.maybe_update_decode_output_keys

  pairs = update([('a', 1), ('b', 2)], decoded)

  assert [value for _, value in pairs] == [1, 2]
  assert f'{host_rows.INDEX}=4' in pairs[1][0]
  with pytest.raises(errors.UserError, match='3 outputs of 2 examples'):
    update([('a', 1)] * 3, decoded)
  assert update([('a', 1)], {'x': np.ones(1)}) == [('a', 1)]


def test_properties(data):
  assert data.task_inst.name == 'looped' and not data.is_mixture
  assert not (data.should_shuffle or data.should_repeat)
  assert not data.is_deterministic
  assert pax_methods.should_process_outputs(data)
  with pytest.raises(AttributeError, match='use get_next'):
    print(data.dataset)


def test_eval_data_is_not_shuffled(caplog):
  task = testing.register('ordered')
  config = testing.eval_config(task.name, shuffle=True)
  data = config.Instantiate()
  assert testing.texts(data, testing.read(data)) == testing.answers(10)
  assert 'shuffle has no effect' in caplog.text
  training = testing.config(task.name).Instantiate()
  assert training.should_shuffle and training.should_repeat
  assert (
    not testing.config(task.name, shuffle=False).Instantiate().should_shuffle
  )


def test_methods_that_would_never_be_called():
  for name in ('_get_backing_ds', 'compute_metrics'):
    with pytest.raises(errors.UserError, match=f'{name} would never be called'):
      type('Mine', (input_adaptor.SeqIOInput,), {name: print})


def test_choices():
  assert pax_methods.select_split('a', lambda task: f'{task}_split') == (
    'a_split'
  )
  assert pax_methods.select_split('a', 'train') == 'train'
  assert pax_methods.is_packing_on(converters.LanguageModelFeatures(pack=True))
  assert not pax_methods.is_packing_on(print)
