"""Tests of several inputs side by side."""

import jax
import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.input_core import host_fields
from pax_compat.inputs import indexed_input, multi_input
from pax_compat.nested_map import NestedMap


class Rows(base_input.BaseInput):
  """Rows with the number of the batch, and of the host."""

  def __post_init__(self):
    super().__post_init__()
    self.count = 0
    self.is_closed = False

  def get_next(self):
    self.count += 1
    x = np.full([self.batch_size, 2], self.count)
    return NestedMap(
      x=x, host=np.full([self.batch_size], self.infeed_host_index)
    )

  def reset(self):
    self.count = 0

  def close(self):
    self.is_closed = True

  def ids_to_strings(self, ids, lengths, key=None):
    return [f'{self.name} {key}'] * len(ids)


def _built(**fields):
  inputs = {'a': Rows.config(batch_size=6), 'b': Rows.config(batch_size=4)}
  fields = {'name': 'dev', 'input_to_params': inputs, **fields}
  return multi_input.MultiInput.config(**fields).Instantiate()


def test_batches_are_side_by_side():
  data = _built(num_infeed_hosts=2, infeed_host_index=1)
  for number in (1, 2):
    batch = data.get_next_padded()
    np.testing.assert_array_equal(batch.a.x, np.full([2, 3, 2], number))
    np.testing.assert_array_equal(batch.b.x, np.full([2, 2, 2], number))
    np.testing.assert_array_equal(batch.a.host, np.ones([2, 3]))


def test_configs_are_not_changed():
  inputs = {'a': Rows.config(name='mine', batch_size=6)}
  data = _built(input_to_params=inputs, is_training=True)
  assert inputs['a'].name == 'mine' and not inputs['a'].is_training
  child = data.get_child('a')
  assert child.name == 'dev_a' and child.is_training


def test_a_reset_reaches_all(tmp_path):
  data = _built(
    input_to_params={'a': Rows.config(batch_size=6)},
    reset_for_eval=True,
    eval_loop_num_batches=2,
  )
  data.get_next()
  data.peek_padded()
  data.reset()
  assert data.get_next_padded().a.x[0, 0, 0] == 1
  data.close()
  assert data.get_child('a').is_closed


def test_strings_are_of_one_input():
  ids, lengths = np.ones([2, 3], int), np.ones([2], int)
  data = _built(default_input='b')
  assert data.ids_to_strings(ids, lengths, 'src') == ['dev_b src'] * 2
  assert data.ids_to_strings(ids, lengths, input_name='a') == ['dev_a None'] * 2
  with pytest.raises(errors.UserError, match='default_input of dev is not set'):
    _built().ids_to_strings(ids, lengths)


@pytest.mark.parametrize(
  ('fields', 'words'),
  [
    (dict(batch_size=2), 'batch_size of dev is 2; expected it on each'),
    (dict(input_to_params={}), 'input_to_params of dev is empty'),
    (dict(reset_for_eval=True), 'with the inputs a, b; expected a single'),
    (dict(default_input='aa'), "dev has no input 'aa'.*a"),
    (
      dict(input_to_params={'a': Rows.config(name='r')}),
      'Rows.batch_size of r is not set',
    ),
  ],
)
def test_invalid_fields(fields, words):
  with pytest.raises(errors.UserError, match=words):
    _built(**fields)


class Standing(Rows):
  """Has a state."""

  state_fits_any_hosts = True

  def _get_state_internal(self):
    return bytes([self.count, 0xFF])

  def _set_state_internal(self, state):
    self.count = state[0]


def _standing(**classes):
  inputs = {name: cls.config(batch_size=2) for name, cls in classes.items()}
  return _built(input_to_params=inputs)


def test_the_state_is_that_of_all_inputs():
  data = _standing(a=Standing, b=Standing)
  assert data.state_fits_any_hosts
  data.get_child('b').get_next()  # They need not stand at the same batch.
  states, batches = [], []
  for _ in range(3):
    data.peek_padded()
    data.get_child('a').peek_padded()
    states.append(data.get_state())
    batches.append(data.get_next_padded())
  assert data.get_state() not in states
  for state, batch in zip(states, batches, strict=True):
    other = _standing(a=Standing, b=Standing)
    other.peek_padded()
    other.set_state(state)
    assert other.get_state() == state
    found = other.get_next_padded()
    for name in 'ab':
      np.testing.assert_array_equal(found[name].x, batch[name].x)


def test_a_child_without_a_state():
  data = _standing(a=Rows, b=Standing)
  assert not data.state_fits_any_hosts
  with pytest.raises(NotImplementedError, match='Rows'):
    data.get_state()
  # It can be peeked at nevertheless, and its inputs too.
  data.get_child('a').peek_padded()
  assert data.peek_padded().a.x[0, 0, 0] == 1
  assert data.get_next_padded().b.x[0, 0, 0] == 1
  assert data.get_next_padded().a.x[0, 0, 0] == 2
  assert data.after_restart() == (
    'a: it starts at its first batch again;'
    ' b: it starts at its first batch again'
  )


@pytest.mark.parametrize(
  ('state', 'words'),
  [
    (b'\xff', 'state of dev cannot be read: Unicode'),
    (b'{}', 'state of dev cannot be read: .*inputs'),
    (b'[]', 'state of dev cannot be read'),
    (b'{"inputs": {"a": "!"}}', 'state of dev cannot be read'),
    (b'{"inputs": {"a": "AA=="}}', 'dev is of the inputs a; it has a, b'),
  ],
)
def test_invalid_states(state, words):
  data = _standing(a=Standing, b=Standing)
  with pytest.raises(errors.UserError, match=words):
    data.set_state(state)


class Skipping(Rows):
  def input_metrics(self):
    return {'input/skipped_records': float(self.batch_size)}


def test_metrics_of_children_are_added():
  inputs = {k: Skipping.config(batch_size=n) for k, n in [('a', 6), ('b', 4)]}
  data = _built(input_to_params={**inputs, 'c': Rows.config(batch_size=2)})
  assert data.input_metrics() == {'input/skipped_records': 10.0}
  assert _built().input_metrics() == {}


class Texts(Rows):
  """Rows with strings, and metrics over all of them."""

  def get_next(self):
    batch = super().get_next()
    batch.of = NestedMap(text=np.array(['a'] * self.batch_size))
    return batch

  def is_host_field(self, path, leaf):
    return path == 'host' or super().is_host_field(path, leaf)

  def has_example_metrics(self, kind):
    return kind == 'eval'


def test_host_fields_of_children(caplog):
  inputs = {'a': Texts.config(batch_size=4), 'b': Rows.config(batch_size=4)}
  data = _built(input_to_params=inputs, batch_padding_size=1)
  rest, host = host_fields.split(data.get_next_padded(), data.is_host_field)
  assert sorted(host) == ['a.host', 'a.of.text']
  assert host['a.of.text'].tolist() == [['a'] * 1] * 4 + [['']]
  assert sorted(rest.a) == ['x'] and sorted(rest.b) == ['host', 'x']
  assert 'eval_sample_weights' in rest
  found = 'dev: the metrics that dev_a computes over all examples are left'
  assert found in caplog.text
  assert not data.has_example_metrics('eval')


class Indexed(indexed_input.IndexedInput):
  """Rows with an order digest and batch specs."""

  num_examples = 24

  def examples(self, indices):
    return NestedMap(id=indices, text=np.array(['a'] * len(indices)))


def test_digests_of_another_order_differ():
  inputs = {
    'a': Rows.config(batch_size=4),
    'b': Indexed.config(batch_size=4, shuffle=True),
    'c': Indexed.config(batch_size=2),
  }
  one, same, other = (
    _built(input_to_params={**inputs, 'b': inputs['b'].clone().set(**fields)})
    for fields in ({}, {}, {'input_random_seed': 7})
  )
  found = []
  for data in (one, same, other):
    data.get_next_padded()
    found.append(data.order_digest())
  assert found[0] == found[1] != found[2]
  assert len(found[0]) == 8
  one.get_next_padded()
  assert one.order_digest() != found[0]
  assert _built().order_digest() is None


def test_specs_are_known_without_a_batch():
  inputs = {k: Indexed.config(batch_size=n) for k, n in (('a', 6), ('b', 4))}
  data = _built(input_to_params=inputs)
  specs = data.batch_specs()
  assert specs == data.specs_of(data.get_next_padded())
  assert specs.a.id == jax.ShapeDtypeStruct((2, 3), np.int64)
  inputs['b'] = Rows.config(batch_size=4)
  assert _built(input_to_params=inputs).batch_specs() is None
