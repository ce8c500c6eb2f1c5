"""Tests of Grain's datasets as inputs."""

import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.inputs import grain_input
from tests.pax_compat import input_hosts

grain = pytest.importorskip('grain')


def numbers(count: int, seed: int = 0):
  """Returns examples with their index and a random number."""
  source = grain.MapDataset.source(range(count)).seed(seed)
  return source.random_map(_example)


def _example(number: int, rng: np.random.Generator):
  return {
    'id': np.int32(number),
    'noise': rng.integers(1 << 30, size=[2]),
    'text': f'example {number}',
    'inner': {'half': number / 2},
  }


def _config(function=numbers, **fields):
  if function is numbers:
    function = config_lib.Config(numbers, count=fields.pop('count', 10))
  return grain_input.GrainInput.config(dataset_fn=function, **fields)


def _of(source, **fields):
  """Returns the config of an input of the examples of a list."""
  fields = {'batch_size': 2, 'reset_for_eval': True, **fields}
  make = fields.pop('make', lambda dataset: dataset)
  return _config(
    lambda: make(grain.MapDataset.source(source)), **fields
  ).Instantiate()


@settings(max_examples=25)
@given(
  st.integers(0, 40),
  st.integers(1, 9),
  st.integers(1, 8),
  st.integers(0, 2),
)
def test_an_evaluation_has_each_example_once(count, size, hosts, num_threads):
  config = _config(count=count, reset_for_eval=True, num_threads=num_threads)
  share = input_hosts.read(config, hosts=hosts, batch_size=size)
  assert share.ids == list(range(count))
  assert share.num_batches == -(-count // (size * hosts))


@settings(max_examples=25)
@given(st.integers(1, 20), st.lists(st.integers(1, 4), max_size=4))
def test_a_run_continues_on_any_number_of_hosts(count, parts):
  config = _config(count=count, is_training=True, input_random_seed=5)
  whole = input_hosts.read(config, hosts=1, batch_size=1, steps=100).ids
  ids, state = [], None
  for hosts in parts:
    share = input_hosts.read(
      config, hosts=hosts, batch_size=3, steps=2, state=state
    )
    ids, state = ids + share.ids, share.states[0]
  assert ids == whole[: len(ids)]


def test_a_batch_has_the_fields_of_the_examples():
  data = _config(batch_size=4, reset_for_eval=True).Instantiate()
  batch = data.get_next()
  assert batch.id.dtype == np.int32
  np.testing.assert_array_equal(batch.id, [0, 1, 2, 3])
  np.testing.assert_array_equal(batch.inner.half, [0, 0.5, 1, 1.5])
  assert batch.noise.shape == (4, 2)
  assert batch.text.tolist() == [f'example {i}' for i in range(4)]
  assert 'text' not in data.batch_specs()
  assert data.specs_of(batch) == data.batch_specs()


def test_random_transformations_are_as_in_grains_repeat():
  config = _config(batch_size=10, is_training=True, shuffle=False)
  data = config.Instantiate(input_random_seed=3)
  repeated = numbers(10, seed=3).repeat(2)
  for first in (0, 10):
    expected = [repeated[i]['noise'] for i in range(first, first + 10)]
    np.testing.assert_array_equal(data.get_next().noise, expected)
  data.reset()
  other = config.Instantiate(input_random_seed=4)
  assert (data.get_next().noise != other.get_next().noise).any()


def test_threads_read_and_end():
  before = set(threading.enumerate())
  config = _config(batch_size=10, reset_for_eval=True, count=30)
  expected = config.Instantiate()
  data = config.Instantiate(num_threads=3)
  for _ in range(3):
    np.testing.assert_array_equal(
      data.get_next().noise, expected.get_next().noise
    )
  started = set(threading.enumerate()) - before
  assert started
  data.close()
  expected.close()
  assert not started & set(threading.enumerate())


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (
      lambda d: d.to_iter_dataset(),
      'returns a .*IterDataset; expected a grain',
    ),
    (lambda d: d.repeat(), 'repeats without an end; leave out'),
    (lambda d: d.filter(lambda x: x['x'] != 1), 'has no example 1: a filter'),
    (
      lambda d: d.map(lambda x: x['x']),
      'example 0 of input is a int; expected',
    ),
    (
      lambda d: d.map(lambda x: {'a': 1} if x['x'] else {'b': 1}),
      r"example 1 of input has the fields \['a'\]; expected .* 0, \['b'\]",
    ),
    (
      lambda d: d.map(lambda x: {'a': np.zeros(x['x'] + 1)}),
      r"'a' of examples of input has the shapes \[\(1,\), \(2,\)\]; expected",
    ),
  ],
)
def test_datasets_of_other_kinds_are_refused(make, message):
  data = _of([{'x': 0}, {'x': 1}], make=make)
  with pytest.raises(errors.UserError, match=message):
    data.get_next()


def test_invalid_fields():
  with pytest.raises(errors.UserError, match='num_threads of input is -1'):
    _config(batch_size=1, num_threads=-1).Instantiate()
  with pytest.raises(errors.UserError, match='dataset_fn of input is 7; exp'):
    _config(7, batch_size=1).Instantiate()


def test_without_grain_the_error_has_the_install_command(monkeypatch):
  monkeypatch.setitem(sys.modules, 'grain', None)
  data = _config(batch_size=1, reset_for_eval=True).Instantiate()
  with pytest.raises(errors.UserError, match=r"pip install 'pax-compat\[grain"):
    data.get_next()
