"""Tests of inputs of tf.data pipelines."""

import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptors import lingvo_runtime, tf_data_input
from pax_compat import base_input, errors
from pax_compat import config as config_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.evaluating import evaluation
from tests import resources
from tests.adaptors.lingvo_input import damaged_files
from tests.pax_compat import input_hosts

_HOSTS = st.integers(1, 4)
_SIZES = st.integers(1, 5)
_PROPERTIES = settings(max_examples=6)


def numbers(count: int = 10, shuffle: bool = True, seed=0, is_training=False):
  """Returns examples with their index."""
  tf = lingvo_runtime.tensorflow()
  dataset = tf.data.Dataset.range(count)
  if is_training and shuffle:
    dataset = dataset.shuffle(7, seed=seed)
  return dataset.map(lambda i: {'id': i, 'inner': {'x': tf.fill([3], i)}})


def shuffled_without_a_seed():
  """Returns numbers in an order that is not deterministic."""
  return (
    lingvo_runtime.tensorflow()
    .data.Dataset.range(1000)
    .shuffle(1000)
    .map(lambda i: {'id': i})
  )


def of_host(host: int, hosts: int, count: int = 10):
  """Returns the numbers of a host."""
  return numbers(count).shard(hosts, host)


def _config(function=numbers, **fields):
  names = ('count', 'shuffle')
  given_fields = {k: fields.pop(k) for k in names if k in fields}
  if given_fields:
    function = config_lib.Config(function, **given_fields)
  return tf_data_input.TFDataInput.config(
    **{'dataset_fn': function, 'batch_size': 4, **fields}
  )


# Each example once.


@_PROPERTIES
@given(st.integers(0, 30), _SIZES, _HOSTS)
def test_an_evaluation_has_each_example_once(count, size, hosts):
  config = _config(count=count, reset_for_eval=True)
  share = input_hosts.read(config, hosts=hosts, batch_size=size)
  assert share.ids == list(range(count))
  assert share.num_batches == -(-count // (size * hosts))


@_PROPERTIES
@given(
  st.integers(1, 20),
  st.lists(st.tuples(_HOSTS, _SIZES, st.integers(0, 3)), max_size=4),
)
def test_a_run_continues_with_other_hosts_and_batch_sizes(count, parts):
  config = _config(count=count, is_training=True, input_random_seed=5)
  total = sum(hosts * size * steps for hosts, size, steps in parts)
  expected = input_hosts.read(config, hosts=1, batch_size=1, steps=total).ids
  for first in range(0, total - count, count):
    assert sorted(expected[first : first + count]) == list(range(count))
  ids, state = [], None
  for hosts, size, steps in parts:
    share = input_hosts.read(
      config, hosts=hosts, batch_size=size, steps=steps, state=state
    )
    ids += share.ids
    assert len(set(share.states)) == 1
    state = share.states[0]
  assert ids == expected


@pytest.mark.parametrize('hosts', [1, 3])
def test_training_ends_after_its_epochs(hosts):
  config = _config(count=5, is_training=True, num_epochs=3)
  share = input_hosts.read(config, hosts=hosts, batch_size=2)
  assert len(share.ids) == 15
  for first in range(0, 15, 5):
    assert sorted(share.ids[first : first + 5]) == list(range(5))


def test_a_function_may_split_the_data():
  config = _config(of_host, is_training=True)
  share = input_hosts.read(config, hosts=2, batch_size=2, steps=3)
  # Step by step, host by host; each host has five of the numbers.
  assert share.ids == [0, 2, 1, 3, 4, 6, 5, 7, 8, 0, 9, 1]
  datas = [
    config.Instantiate(num_infeed_hosts=2, infeed_host_index=h)
    for h in range(2)
  ]
  assert not any(data.state_fits_any_hosts for data in datas)
  states = [data.get_next() and data.get_state() for data in datas]
  nexts = [data.get_next().id.tolist() for data in datas]
  for data, state, expected in zip(datas, states, nexts, strict=True):
    data.set_state(state)
    assert data.get_next().id.tolist() == expected


def test_a_host_maps_its_own_examples_and_one_of_each_step():
  mapped = []

  def note(example):
    tf = lingvo_runtime.tensorflow()
    tf.py_function(lambda i: mapped.append(int(i)), [example['id']], [])
    return {'id': example['id'] * 10}

  config = _config(count=19, batch_size=3, reset_for_eval=True, map_fn=note)
  data = config.Instantiate(num_infeed_hosts=3, infeed_host_index=1)
  ids = []
  while (batch := data.peek_padded()) is not None:
    ids += data.get_next_padded().id[batch.eval_sample_weights > 0].tolist()
  assert ids == [30, 40, 50, 120, 130, 140]
  assert sorted(mapped) == [0, 3, 4, 5, 9, 12, 13, 14, 18]


# The table of what an evaluation reads.


@pytest.mark.parametrize(
  ('fields', 'first', 'second'),
  [
    (dict(reset_for_eval=True), range(10), range(10)),
    (dict(reset_for_eval=True, eval_loop_num_batches=2), range(8), range(8)),
    (dict(eval_loop_num_batches=2), range(8), [8, 9, *range(6)]),
  ],
)
def test_evaluations(fields, first, second):
  data = _config(**fields).Instantiate()
  for expected in (first, second):
    fed = evaluation.all_batches(data, lambda batch: batch)
    batches = [each.arrays for each in fed]
    weights = np.concatenate([b.eval_sample_weights for b in batches])
    ids = np.concatenate([b.id for b in batches])
    assert ids[weights > 0].tolist() == list(expected)
  assert data.num_samples == 10


# Fields.


def _texts():
  tf = lingvo_runtime.tensorflow()
  rows = {
    'text': ['one', 'two', 'three'],
    'eval_sample_weights': np.array([1, 0.5, 1], np.float32),
    'target_paddings': np.zeros([3, 2], np.float32),
  }
  return tf.data.Dataset.from_tensor_slices(rows)


def test_strings_and_weights_are_kept_and_padding_rows_have_weight_0():
  batch = _config(_texts, reset_for_eval=True).Instantiate().get_next()
  assert batch.text.tolist() == [b'one', b'two', b'three', b'one']
  np.testing.assert_array_equal(batch.eval_sample_weights, [1, 0.5, 1, 0])
  np.testing.assert_array_equal(batch.target_paddings[3], [1, 1])
  assert isinstance(batch, NestedMap)


def test_specs_are_known_without_a_batch():
  config = _config(batch_padding_size=1)
  data = config.Instantiate()
  specs = data.batch_specs()
  assert specs == NestedMap(
    id=jax.ShapeDtypeStruct((5,), np.int64),
    inner=NestedMap(x=jax.ShapeDtypeStruct((5, 3), np.int64)),
    eval_sample_weights=jax.ShapeDtypeStruct((5,), np.float32),
  )
  assert data.specs_of(data.get_next_padded()) == specs
  texts = _config(_texts).Instantiate()
  assert texts.batch_specs() == texts.specs_of(texts.get_next())
  assert 'text' not in texts.batch_specs()


def test_specs_of_unknown_shapes_need_a_batch():
  def unknown():
    tf = lingvo_runtime.tensorflow()
    shape = tf.TensorSpec([None], tf.int32)
    return tf.data.Dataset.from_generator(
      lambda: iter([{'x': [1, 2, 3]}] * 4), output_signature={'x': shape}
    )

  config = _config(unknown, batch_size=2)
  assert config.Instantiate().batch_specs() is None
  provider = base_input.DatasetInputSpecsProvider.config(input_p=config)
  assert provider.Instantiate().get_input_specs() == NestedMap(
    x=jax.ShapeDtypeStruct((2, 3), np.int32),
    eval_sample_weights=jax.ShapeDtypeStruct((2,), np.float32),
  )


# State.


def test_the_state_is_from_before_the_peeked_batch():
  config = _config(is_training=True)
  data = config.Instantiate()
  data.get_next_padded()
  peeked = data.peek_padded()
  other = config.Instantiate()
  other.set_state(data.get_state())
  np.testing.assert_array_equal(other.get_next().id, peeked.id)
  other.resume_at(1)
  np.testing.assert_array_equal(other.get_next().id, peeked.id)
  assert 'at the next example' in other.after_restart()


def test_steps_are_those_of_all_hosts():
  hosts = dict(num_infeed_hosts=2, infeed_host_index=1)
  config = _config(is_training=True, batch_size=2, **hosts)
  data, resumed = config.Instantiate(), config.Instantiate()
  for _ in range(3):
    data.get_next()
  resumed.resume_at(3)
  assert resumed.get_next().id.tolist() == data.get_next().id.tolist()


def test_another_order_is_refused():
  config = _config(shuffled_without_a_seed, is_training=True)
  data = config.Instantiate()
  data.get_next()
  other = config.Instantiate()
  with pytest.raises(errors.UserError, match='begins with another example'):
    other.set_state(data.get_state())


def test_data_that_is_not_deterministic_has_no_state():
  config = _config(
    shuffled_without_a_seed, is_training=True, is_deterministic=False
  )
  data = config.Instantiate()
  data.resume_at(3)
  assert len(set(data.get_next().id.tolist())) == 4
  for ask in (data.get_state, lambda: data.set_state(b'{}')):
    with pytest.raises(NotImplementedError, match='is_deterministic=False'):
      ask()
  assert 'from the start' in data.after_restart()


@pytest.mark.parametrize(
  'state', [b'', b'[]', b'{"examples_read": -1, "first_example": null}']
)
def test_invalid_states(state):
  with pytest.raises(errors.UserError, match='is not a state of input'):
    _config().Instantiate().set_state(state)


def test_digests_of_other_data_differ():
  def digests(host, function=numbers):
    config = _config(function, batch_size=2, is_training=True)
    data = config.Instantiate(num_infeed_hosts=2, infeed_host_index=host)
    found = [data.get_next() and data.order_digest() for _ in range(3)]
    data.reset()
    data.get_next()
    return [*found, data.order_digest()]

  first, *rest, again = digests(0)
  assert [first, *rest, again] == digests(1)
  assert len({first, *rest}) == 3 and again == first
  other = shuffled_without_a_seed
  assert digests(0, other)[0] != digests(1, other)[0]
  assert digests(0, of_host) == [None] * 4


def test_a_state_is_small_and_readable():
  data = _config().Instantiate()
  data.get_next()
  assert json.loads(data.get_state())['examples_read'] == 4


# Invalid datasets, and threads that are left.


def _dataset(make):
  return lambda: make(lingvo_runtime.tensorflow())


@pytest.mark.parametrize(
  ('make', 'fields', 'message'),
  [
    (
      lambda tf: [1, 2],
      {},
      'dataset_fn of input returns a list; expected a tf',
    ),
    (lambda tf: tf.data.Dataset.range(3), {}, 'expected dicts of tensors'),
    (
      lambda tf: numbers().repeat(),
      dict(reset_for_eval=True),
      'the dataset of input never ends; leave out repeat',
    ),
    (
      lambda tf: numbers().map(
        lambda x: {'r': tf.RaggedTensor.from_row_lengths([1], [1])}
      ),
      {},
      "the field 'r' of the examples of input is a RaggedTensorSpec",
    ),
    (
      lambda tf: tf.data.Dataset.range(1, 9).map(lambda i: {'x': tf.ones([i])}),
      {},
      'the dataset fails after 0 examples, which must have one shape',
    ),
    (
      lambda tf: tf.data.TextLineDataset('/not/there').map(lambda x: {'x': x}),
      {},
      'the dataset fails after 0 examples: the file /not/there does not',
    ),
    (
      lambda tf: tf.data.Dataset.list_files('/not/there*'),
      {},
      'dataset_fn of input fails: .*/not/there',
    ),
  ],
)
def test_datasets_that_are_refused(make, fields, message):
  data = _config(_dataset(make), **fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    data.get_next()


def _examples_of(path, compute=False):
  """Returns a dataset of the files whose paths begin with `path`."""
  tf = lingvo_runtime.tensorflow()
  paths = tf.data.Dataset.list_files(f'{path}*', shuffle=False)
  if compute:
    names = tf.data.Dataset.from_tensor_slices(['good', 'bad'])
    paths = names.map(lambda name: tf.strings.join([str(path), name]))
  records = paths.interleave(tf.data.TFRecordDataset, cycle_length=1)
  spec = {'n': tf.io.FixedLenFeature([], tf.int64)}
  return records.map(lambda x: tf.io.parse_single_example(x, spec))


@pytest.mark.parametrize(
  ('third', 'compute', 'message'),
  [
    (None, False, 'record 5 of {}/a_bad .* does not match its checksum'),
    (None, True, 'a record of an unknown file: .*corrupted record'),
    (b'\xff none', False, 'record 2 of {}/a_bad is not a tf.Example'),
    (b'\xff none', True, 'an unknown file: .*Could not parse example'),
  ],
)
def test_the_record_that_fails_is_named(tmp_path, third, compute, message):
  damaged_files.write(tmp_path / 'a_good')
  damaged_files.damaged(tmp_path / 'a_bad', 'data')
  if third is not None:
    records = [damaged_files.example(1)] * 2
    damaged_files.write(tmp_path / 'a_bad', [*records, third])
  function = config_lib.Config(
    _examples_of, path=str(tmp_path / 'a_'), compute=compute
  )
  data = _config(function, batch_size=1, reset_for_eval=True).Instantiate()
  message = f'fails after \\d+ examples.*{message.format(tmp_path)}'
  with pytest.raises(errors.UserError, match=message):
    for _ in range(41):
      data.get_next()


_TWO_HOSTS = dict(num_infeed_hosts=2)


@pytest.mark.parametrize(
  ('function', 'fields', 'message'),
  [
    (numbers, dict(batch_size=None), 'batch_size of input is not set'),
    (numbers, dict(num_epochs=2), 'num_epochs of input is 2, and is_training'),
    (
      numbers,
      dict(num_epochs=1.5, is_training=True),
      'num_epochs of train is 1.5, and is_training is True; expected None',
    ),
    (numbers, dict(infeed_host_index=1), 'is 1; expected one of 1 hosts'),
    (numbers, dict(map_fn=3), 'map_fn of input is 3; expected a function'),
    (3, {}, 'dataset_fn of input is 3; expected a function'),
    (
      numbers,
      dict(is_deterministic=False, **_TWO_HOSTS),
      'is False, so 2 hosts cannot share one order',
    ),
    (
      of_host,
      dict(reset_for_eval=True, **_TWO_HOSTS),
      'splits the data over 2 hosts, which may have different',
    ),
  ],
)
def test_invalid_fields(function, fields, message):
  with pytest.raises(errors.UserError, match=message):
    _config(function, **fields).Instantiate()


def test_no_thread_is_left():
  config = _config(reset_for_eval=True)

  def cycle():
    data = config.Instantiate()
    data.get_next()
    data.close()

  for _ in range(2):  # The first one starts TensorFlow's own pools.
    cycle()
  before, threads = resources.held(), resources.threads()
  for _ in range(20):
    cycle()
  resources.wait_for_end(resources.threads() - threads)
  assert resources.held().files <= before.files
