"""Tests of inputs whose examples are read by index."""

import doctest
import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pax_compat import base_input, errors
from pax_compat.inputs import indexed_input
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.evaluating import evaluation
from tests.pax_compat import input_hosts

_HOSTS = st.integers(1, 8)
_SIZES = st.integers(1, 9)
_PROPERTIES = settings(max_examples=60)


class Numbers(indexed_input.IndexedInput):
  """Examples with their index, and as many tokens.

  Attributes:
    count: number of examples.
    weight: of those of odd numbers; None leaves it to others.
  """

  count: int = 10
  weight: float | None = None

  @property
  def num_examples(self):
    return self.count

  def examples(self, indices):
    assert len(indices) and indices.dtype == np.int64
    assert (0 <= indices).all() and (indices < self.count).all()
    batch = NestedMap(
      id=indices,
      text=np.array([f'example {i}' for i in indices], object),
      paddings=np.zeros([len(indices), 3], np.float32),
    )
    if self.weight is not None:
      batch.eval_sample_weights = np.where(
        indices % 2, self.weight, 1.0
      ).astype(np.float32)
    return batch


def _evaluated(**fields):
  return Numbers.config(name='dev', reset_for_eval=True, **fields)


def _trained(**fields):
  return Numbers.config(**{'name': 'train', 'is_training': True, **fields})


def _ids(data, batches: int) -> list[int]:
  return [i for _ in range(batches) for i in data.get_next().id.tolist()]


# Each example once.


@_PROPERTIES
@given(st.integers(0, 60), _SIZES, _HOSTS, st.booleans())
def test_an_evaluation_has_each_example_once(count, size, hosts, shuffle):
  config = _evaluated(count=count, shuffle=shuffle)
  share = input_hosts.read(config, hosts=hosts, batch_size=size)
  assert sorted(share.ids) == list(range(count))
  assert share.weights == [1.0] * count
  assert share.num_batches == -(-count // (size * hosts))
  if not shuffle:
    assert share.ids == list(range(count))


@pytest.mark.parametrize('hosts', [1, 2, 3, 4, 8])
@pytest.mark.parametrize('count', [0, 1, 15, 16, 17, 10_007])
def test_an_evaluation_of_many_sizes(count, hosts):
  config = _evaluated(count=count)
  share = input_hosts.read(config, hosts=hosts, batch_size=16)
  assert share.ids == list(range(count))
  assert share.num_batches == -(-count // (16 * hosts))


@_PROPERTIES
@given(st.integers(1, 30), _SIZES, _HOSTS, st.integers(0, 2**64))
def test_training_has_each_example_once_in_each_epoch(count, size, hosts, seed):
  config = _trained(count=count, input_random_seed=seed)
  steps = -(-3 * count // (size * hosts))
  share = input_hosts.read(config, hosts=hosts, batch_size=size, steps=steps)
  assert len(share.ids) == steps * size * hosts
  for first in range(0, 3 * count, count):
    assert sorted(share.ids[first : first + count]) == list(range(count))


@_PROPERTIES
@given(st.integers(1, 20), st.integers(1, 4), _SIZES, _HOSTS)
def test_training_ends_after_its_epochs(count, epochs, size, hosts):
  config = _trained(count=count, num_epochs=epochs)
  share = input_hosts.read(config, hosts=hosts, batch_size=size)
  assert len(share.ids) == epochs * count
  for first in range(0, epochs * count, count):
    assert sorted(share.ids[first : first + count]) == list(range(count))


@_PROPERTIES
@given(
  st.integers(1, 40),
  st.lists(st.tuples(_HOSTS, _SIZES, st.integers(0, 4)), max_size=5),
  st.sampled_from([None, 1, 7]),
)
def test_a_run_continues_with_other_hosts_and_batch_sizes(count, parts, epochs):
  config = _trained(count=count, input_random_seed=3, num_epochs=epochs)
  expected = input_hosts.read(
    config, hosts=1, batch_size=1, steps=count * (epochs or 20)
  ).ids
  ids, state = [], None
  for hosts, size, steps in parts:
    if epochs is not None:
      left = epochs * count - len(ids)
      steps = min(steps, -(-left // (hosts * size)))
    share = input_hosts.read(
      config, hosts=hosts, batch_size=size, steps=steps, state=state
    )
    ids += share.ids
    assert len(set(share.states)) == 1
    state = share.states[0]
    assert json.loads(state)['examples_read'] == len(ids)
  assert ids[: len(expected)] == expected[: len(ids)]


def test_the_order_depends_on_the_seed():
  def order(**fields):
    return _ids(_trained(batch_size=10, **fields).Instantiate(), 2)

  assert order() == order(input_random_seed=0)
  assert order() != order(input_random_seed=1)
  assert order()[:10] != order()[10:]
  assert order(shuffle=False) == [*range(10), *range(10)]


# The table of what an evaluation reads.


@pytest.mark.parametrize(
  ('fields', 'first', 'second'),
  [
    (dict(reset_for_eval=True), range(10), range(10)),
    (dict(reset_for_eval=True, eval_loop_num_batches=2), range(8), range(8)),
    (dict(eval_loop_num_batches=2), range(8), [8, 9, *range(6)]),
    (dict(), range(4), range(4, 8)),
  ],
)
def test_evaluations(fields, first, second):
  data = Numbers.config(batch_size=4, **fields).Instantiate()
  for expected in (first, second):
    fed = evaluation.all_batches(data, lambda batch: batch)
    batches = [each.arrays for each in fed]
    weights = np.concatenate([b.eval_sample_weights for b in batches])
    ids = np.concatenate([b.id for b in batches])
    assert ids[weights > 0].tolist() == list(expected)


def test_an_evaluation_of_nothing_ends_alike_on_every_host():
  for host in range(2):
    data = _evaluated(count=0, batch_size=4).Instantiate(
      num_infeed_hosts=2, infeed_host_index=host
    )
    with pytest.raises(StopIteration):
      data.get_next()
    with pytest.raises(errors.UserError, match="'dev' has 0 batches"):
      list(evaluation.all_batches(data, lambda batch: batch))


@pytest.mark.parametrize('fields', [dict(is_training=True), dict()])
def test_data_without_end_needs_an_example(fields):
  data = Numbers.config(count=0, batch_size=4, **fields).Instantiate()
  with pytest.raises(errors.UserError, match='(train|input) has no examples'):
    data.get_next()


def test_a_reset_drops_the_peeked_batch():
  data = _evaluated(batch_size=4).Instantiate()
  data.get_next_padded()
  assert data.peek_padded().id.tolist() == [4, 5, 6, 7]
  data.reset()
  assert data.get_next_padded().id.tolist() == [0, 1, 2, 3]
  assert data.num_samples == 10


# Padding rows.


def test_padding_rows_have_weight_0():
  data = _evaluated(batch_size=8).Instantiate(
    num_infeed_hosts=2, infeed_host_index=1
  )
  batch = data.get_next()
  np.testing.assert_array_equal(batch.id, [8, 9, 8, 8, 8, 8, 8, 8])
  np.testing.assert_array_equal(batch.eval_sample_weights, [1, 1] + [0] * 6)
  np.testing.assert_array_equal(batch.paddings[2:], 1)
  assert batch.text[7] == 'example 8'


def test_a_host_without_an_example_gives_the_batch_too():
  data = _evaluated(count=3, batch_size=4).Instantiate(
    num_infeed_hosts=2, infeed_host_index=1
  )
  batch = data.get_next()
  np.testing.assert_array_equal(batch.eval_sample_weights, [0, 0, 0, 0])
  assert batch.id.shape == (4,)


def test_weights_of_the_data_are_kept():
  config = _evaluated(weight=0.25, count=5)
  share = input_hosts.read(config, hosts=2, batch_size=2)
  assert share.weights == [1.0, 0.25, 1.0, 0.25, 1.0]


# State.


def test_the_state_is_from_before_the_peeked_batch(tmp_path):
  config = _trained(batch_size=3)
  data = config.Instantiate()
  data.get_next_padded()
  peeked = data.peek_padded()
  data.save(tmp_path / 'state')
  other = config.Instantiate()
  other.restore(tmp_path / 'state')
  np.testing.assert_array_equal(other.get_next().id, peeked.id)
  third = config.Instantiate()
  third.resume_at(1)
  np.testing.assert_array_equal(third.get_next().id, peeked.id)


@pytest.mark.parametrize('host', [0, 1])
def test_steps_are_those_of_all_hosts(host):
  config = _trained(batch_size=2, num_infeed_hosts=2, infeed_host_index=host)
  read, resumed = config.Instantiate(), config.Instantiate()
  _ids(read, 3)
  resumed.resume_at(3)
  assert _ids(resumed, 4) == _ids(read, 4)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(count=11), 'num_examples was 10 and is 11'),
    (dict(input_random_seed=4), 'input_random_seed was 0 and is 4'),
    (dict(shuffle=False), 'input_random_seed was 0 and is None'),
  ],
)
def test_a_state_of_other_data_is_refused(fields, message):
  data = _trained(batch_size=3).Instantiate()
  data.get_next()
  other = _trained(batch_size=3, **fields).Instantiate()
  with pytest.raises(errors.UserError, match=f'after 3 examples: {message}'):
    other.set_state(data.get_state())


@pytest.mark.parametrize(
  'state',
  [
    b'',
    b'\xff',
    b'7',
    b'{"examples_read": 3}',
    b'{"examples_read": -3, "num_examples": 10, "input_random_seed": 0}',
    b'{"examples_read": "3", "num_examples": 10, "input_random_seed": 0}',
  ],
)
def test_invalid_states(state):
  data = _trained(batch_size=3).Instantiate()
  with pytest.raises(errors.UserError, match='is not a state of train'):
    data.set_state(state)


def test_digests_of_other_data_differ():
  def digests(host, **fields):
    data = _evaluated(batch_size=2, **fields).Instantiate(
      num_infeed_hosts=2, infeed_host_index=host
    )
    found = [data.order_digest()]
    for _ in range(3):
      data.get_next()
      found.append(data.order_digest())
    return found

  assert digests(0) == digests(1) and len(set(digests(0))) == 4
  assert digests(0)[1] != digests(1, count=11)[1]


# What batches are like.


def test_specs_are_known_without_a_batch():
  config = _trained(batch_size=4, batch_padding_size=2)
  specs = config.Instantiate().batch_specs()
  assert specs == NestedMap(
    id=jax.ShapeDtypeStruct((6,), np.int64),
    paddings=jax.ShapeDtypeStruct((6, 3), np.float32),
    eval_sample_weights=jax.ShapeDtypeStruct((6,), np.float32),
  )
  data = config.Instantiate()
  assert data.specs_of(data.get_next_padded()) == specs
  provider = base_input.DatasetInputSpecsProvider.config(input_p=config)
  assert provider.Instantiate().get_input_specs() == specs
  assert _evaluated(count=0, batch_size=1).Instantiate().batch_specs() is None


def test_the_example():
  result = doctest.testmod(indexed_input)
  assert result.attempted > 4 and not result.failed


# Invalid fields and examples.


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(batch_size=None), 'batch_size of train is not set; expected'),
    (dict(batch_size=0), 'batch_size of train is 0; expected'),
    (dict(batch_size=2.0), 'batch_size of train is 2.0; expected'),
    (dict(infeed_host_index=2, num_infeed_hosts=2), 'is 2; expected one of 2'),
    (dict(infeed_host_index=-1), 'is -1; expected one of 1 hosts'),
    (dict(input_random_seed=-1), 'input_random_seed of train is -1; expected'),
    (dict(num_epochs=0), 'num_epochs of train is 0, .*; expected None, or'),
    (dict(num_epochs=2, is_training=False), 'is 2, and is_training is False'),
  ],
)
def test_invalid_fields(fields, message):
  config = _trained(**{'batch_size': 4, **fields})
  with pytest.raises(errors.UserError, match=message):
    config.Instantiate()


@pytest.mark.parametrize(
  ('made', 'message'),
  [
    ([1, 2, 3], 'the examples of train are a list; expected a NestedMap'),
    (
      NestedMap(),
      'the examples of train are a NestedMap; expected a NestedMap',
    ),
    (
      NestedMap(x=[1, 2]),
      "'x.0' of 2 examples of train is a int of shape None",
    ),
    (
      NestedMap(x=np.ones([3])),
      r'is a ndarray of shape \(3,\); expected a Num',
    ),
    (NestedMap(x=np.ones([])), r'is a ndarray of shape \(\); expected a NumPy'),
  ],
)
def test_invalid_examples(made, message):
  class Mine(indexed_input.IndexedInput):
    """Returns the same examples for all indices."""

    num_examples = 5

    def examples(self, indices):
      return made

  data = Mine.config(batch_size=2, is_training=True).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    data.get_next()


@pytest.mark.parametrize('count', [-1, None, 2.5])
def test_invalid_numbers_of_examples(count):
  data = _trained(batch_size=1, count=count).Instantiate()
  with pytest.raises(errors.UserError, match=f'of train is {count}; expected'):
    data.get_next()


def test_missing_methods_of_a_subclass():
  class Mine(indexed_input.IndexedInput):
    """Defines nothing."""

  data = Mine.config(batch_size=2, is_training=True).Instantiate()
  with pytest.raises(errors.UserError, match='Mine has no `num_ex'):
    data.get_next()
  Mine.num_examples = 3
  with pytest.raises(errors.UserError, match='Mine has no method `ex'):
    data.get_next()
