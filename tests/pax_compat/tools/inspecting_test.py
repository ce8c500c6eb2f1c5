"""Tests of inspecting inputs that read from other inputs."""

import numpy as np

from pax_compat.inputs import indexed_input, multi_input, multi_task_input
from pax_compat.nested_map import NestedMap
from pax_compat.tools import inspecting


class Numbers(indexed_input.IndexedInput):
  """Rows of their index, and strings of a word for each."""

  num_examples = 10

  def examples(self, indices):
    ids = np.repeat(indices[:, None], 3, axis=1)
    return NestedMap(ids=ids, number=indices)

  def ids_to_strings(self, ids, lengths, key=None):
    return [f'{self.name} {row[0]}' for row in ids]


def _found(config):
  return [
    inspecting.inspect(part, batches=3, hosts=2, shard_batches=9)
    for part in inspecting.with_children(config)
  ]


def test_padding_rows_of_a_task_are_not_counted():
  inner = Numbers.config(batch_size=4, reset_for_eval=True)
  config = multi_task_input.TaskInput.config(name='dev', task='a', input=inner)
  [found] = _found(config)
  assert not found.warnings
  assert [batch.weights.tolist() for batch in found.batches[1:]] == [
    [1, 1, 1, 1],
    [1, 1, 0, 0],
  ]
  assert list(found.batches[0].scalars) == ['a.number']
  shards = found.shards
  assert (shards.examples, shards.excess, shards.missing) == (10, 0, 0)


def test_inputs_side_by_side_are_inspected_one_by_one():
  inputs = {
    'a': Numbers.config(batch_size=6),
    'b': Numbers.config(batch_size=4),
  }
  config = multi_input.MultiInput.config(
    name='train', is_training=True, input_to_params=inputs
  )
  whole, *others = _found(config)
  assert whole.specs['a.ids'] == ((2, 3, 3), 'int64')
  assert not any(batch.tokens for batch in whole.batches)
  assert [one.config.name for one in others] == ['train_a', 'train_b']
  for one, rows in zip(others, (6, 4), strict=True):
    assert one.config.is_training
    [tokens] = one.batches[0].tokens
    name = one.config.name
    assert tokens.texts == [f'{name} {row[0]}' for row in tokens.ids]
    assert len(tokens.texts) == rows
  assert inputs['a'].name == 'input'
