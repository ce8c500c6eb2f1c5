"""Tests of matching examples of SeqIO tasks with outputs."""

import random
import types

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input.metrics import matching
from pax_compat import errors


def _as_it_is(text, example, is_target):
  return text


def _task(postprocess_fn=_as_it_is):
  seqio = lingvo_runtime.seqio()
  feature = seqio.Feature(seqio.ByteVocabulary())
  return types.SimpleNamespace(
    name='some_task',
    output_features={'targets': feature},
    postprocess_fn=postprocess_fn,
  )


def _targets(count):
  return [(i, {'targets_pretokenized': f't{i}'.encode()}) for i in range(count)]


def _match(outputs, targets, task=None):
  return matching.match(task or _task(), outputs, targets, name='dev')


def test_the_order_is_that_of_the_data():
  outputs = [(i, {'decoded_substr': f'p{i}'}) for i in range(7)]
  random.Random(0).shuffle(outputs)
  matched = _match(outputs, iter(_targets(7)))
  assert matched.targets == [f't{i}' for i in range(7)]
  assert matched.predictions == [f'p{i}' for i in range(7)]


def test_each_example_has_one_output():
  outputs = [(i, {}) for i in (0, 1, 1, 3, 8, 9)]
  with pytest.raises(errors.UserError) as raised:
    _match(outputs, _targets(12))
  assert str(raised.value) == (
    "'dev': of 12 examples of the SeqIO task 'some_task', by their indices in"
    ' the data: 7 without an output (2, 4, 5, 6, 7 and 2 more); 1 with'
    ' several outputs (1); expected one output for each'
  )
  with pytest.raises(
    errors.UserError, match=r'2 that have an output .* \(5, -1\)'
  ):
    _match([(i, {}) for i in (0, 5, -1)], _targets(1))


def test_postprocessors_get_is_target():
  def postprocess(text, example, is_target):
    return text, example['targets_pretokenized'], is_target

  matched = _match(
    [(0, {'decoded_substr': 'p'})], _targets(1), _task(postprocess)
  )
  assert matched.targets == [('t0', b't0', True)]
  assert matched.predictions == [('p', b't0', False)]


def test_targets_without_text_are_decoded():
  tokens = np.array(lingvo_runtime.seqio().ByteVocabulary().encode('hä'))
  matched = _match([(0, {})], [(0, {'targets': tokens.astype(np.int32)})])
  assert matched.targets == ['hä']
  with pytest.raises(
    errors.UserError, match="'some_task' has inputs; expected"
  ):
    _ = _match([(0, {})], [(0, {'inputs': tokens})]).targets


def test_missing_outputs():
  matched = _match([(0, {'ids': 1, 'prefix': 'a'})], _targets(1))
  with pytest.raises(
    errors.UserError,
    match="predictions as the output 'decoded_substr' .* returns ids",
  ):
    _ = matched.predictions
  with pytest.raises(
    errors.UserError, match="'scores' of .* returns ids, pref"
  ):
    _ = matched.scores
  with pytest.raises(errors.UserError, match='the model returns a str'):
    _ = _match([(0, 'text')], _targets(1)).predictions


def test_scores_are_padded_to_an_array():
  outputs = [
    (
      i,
      {'scores': np.float32(i), 'ids': np.arange(i + 1), 'text': 'ab'[: i + 1]},
    )
    for i in (1, 0)
  ]
  outputs[0][1]['only_here'] = 1
  matched = _match(outputs, _targets(2))
  assert matched.scores.dtype == np.float32
  assert matched.scores.tolist() == [0.0, 1.0]
  others = matched.others('scores')
  assert others['ids'].tolist() == [[0, 0], [0, 1]]
  assert others['text'].tolist() == ['a', 'ab']
  assert set(others) == {'ids', 'text'}


def test_a_column_of_anything():
  assert matching.column([{'a': 1}, {'b': 2}]).tolist() == [
    {'a': 1},
    {'b': 2},
  ]
  halves = matching.column([jnp.bfloat16(0.5)] * 3)
  assert halves.dtype == np.float32 and halves.tolist() == [0.5] * 3
  mixed = matching.column([np.arange(2), 3.0])
  assert mixed.dtype == object and mixed[1] == 3.0
  assert matching.column([np.ones([1, 2]), np.ones([2, 1])]).tolist() == [
    [[1, 1], [0, 0]],
    [[1, 0], [1, 0]],
  ]
