"""What Pax's adaptors of Lingvo inputs are known to do wrong, and these not."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import (
  eval_adaptors,
  input_adaptor,
  new_batch_size,
)
from pax_compat.inputs import multi_input
from tests.adaptors.lingvo_input import generators as testing

COUNT = 11


@pytest.fixture(name='build')
def _build():
  """Builds inputs that are closed at the end of the test."""
  built = []

  def build(cls, **fields):
    built.append(cls(**fields))
    return built[-1]

  yield build
  for data in built:
    data.close()


def _lines(folder):
  pattern = testing.write_lines(
    folder / 'a.txt', testing.unique_lines(COUNT, letters=4)
  )
  return testing.letters_params(
    pattern, repeat_count=1, bucket_batch_limit=[2, 2, 2]
  )


def _side_by_side(folder):
  inner = eval_adaptors.LingvoEvalAdaptor.config(
    name='a', input=_lines(folder), batch_size=2
  )
  return multi_input.MultiInput, dict(
    input_to_params={'a': inner}, reset_for_eval=True
  )


_ADAPTORS = {
  'training': lambda folder: (
    input_adaptor.LingvoInputAdaptor,
    dict(input=_lines(folder)),
  ),
  'replay': lambda folder: (
    input_adaptor.LingvoInputAdaptor,
    dict(input=_lines(folder), replay=True),
  ),
  'small batches': lambda folder: (
    new_batch_size.LingvoInputAdaptorNewBatchSize,
    dict(input=_lines(folder), batch_size=1),
  ),
  'evaluation': lambda folder: (
    eval_adaptors.LingvoEvalAdaptor,
    dict(input=_lines(folder), batch_size=2, reset_for_eval=True),
  ),
  'by count': lambda folder: (
    eval_adaptors.LingvoLazyEvalAdaptor,
    dict(
      input=testing.numbers(COUNT, repeat=True).Set(
        batch_size=2, num_samples=COUNT
      ),
      reset_for_eval=True,
    ),
  ),
  'side by side': _side_by_side,
}


def _drained(data) -> list:
  """Returns all batches, with a peek at each before."""
  batches = []
  while data.peek_padded() is not None:
    batches.append(data.get_next_padded())
  return batches


@pytest.mark.parametrize('kind', _ADAPTORS)
def test_a_reset_forgets_what_was_peeked_at(build, tmp_path, kind):
  cls, fields = _ADAPTORS[kind](tmp_path)
  data = build(cls, **fields)
  whole = _drained(data)
  assert len(whole) >= COUNT // 2
  for taken in (0, 1, 3):
    data.reset()
    for _ in range(taken):
      data.get_next_padded()
    data.peek_padded()
    data.reset()
    again = _drained(data)
    assert len(again) == len(whole)
    flat = [dict(batch.flatten_items()) for batch in (*whole, *again)]
    testing.assert_same(flat[len(whole) :], flat[: len(whole)])


def test_seeds_of_hosts_and_restarts_never_collide():
  seeds = {
    input_adaptor.derive_seed(seed, host, step)
    for seed in (1, 301)
    for host in range(64)
    for step in range(0, 4000, 100)
  }
  assert len(seeds) == 2 * 64 * 40
  assert min(seeds) > 0 and max(seeds) < 2**31 - 1


def test_no_two_of_very_many_hosts_have_one_seed():
  # Of so many that are drawn at random some would be the same.
  hosts = 1 << 18
  seeds = {input_adaptor.derive_seed(7, host, 100) for host in range(hosts)}
  assert len(seeds) == hosts


def test_a_seed_is_the_same_after_many_resets(build, tmp_path):
  params = _lines(tmp_path).Set(repeat_count=-1, file_random_seed=7)
  before = params.ToText()
  orders = []
  for host in (0, 1, 3):
    data = build(
      input_adaptor.LingvoInputAdaptor,
      input=params,
      is_training=True,
      allow_fixed_file_random_seed=True,
      num_infeed_hosts=4,
      infeed_host_index=host,
    )
    seeds = set()
    for _ in range(3):
      data.get_next()
      seeds.add(
        data._generator.driver()._backend.generator.params.file_random_seed
      )
      data.reset()
    assert len(seeds) == 1
    orders.append(seeds.pop())
  assert len({*orders, 7}) == 4
  assert params.ToText() == before


@pytest.mark.parametrize('hosts', [1, 3])
def test_weights_of_the_input_survive_where_examples_are_counted(build, hosts):
  params = testing.numbers(7, repeat=True, weights=True)
  params.Set(batch_size=2, num_samples=7)
  found = {}
  for host in range(hosts):
    data = build(
      eval_adaptors.LingvoLazyEvalAdaptor,
      input=params,
      reset_for_eval=True,
      num_infeed_hosts=hosts,
      infeed_host_index=host,
    )
    for batch in testing.drain(data):
      for x, weight in zip(batch.x, batch.eval_sample_weights, strict=True):
        if weight:
          assert x not in found
          found[int(x)] = float(weight)
  assert found == {x: x / 2 for x in range(1, 7)}  # That of 0 is 0.


def test_an_evaluation_reads_no_more_than_its_batches_need(build):
  drawn = []
  data = build(
    eval_adaptors.LingvoEvalAdaptor,
    input=_counting_params(drawn, 2000),
    batch_size=8,
    reset_for_eval=True,
  )
  # TensorFlow reads ahead of it, more or less as it finds useful: of all that
  # there is, half is what no reading ahead comes to.
  data.get_next()
  assert len(drawn) < 1000
  held = 0
  for number, _ in enumerate(iter(data.get_next, None), 2):
    held = max(held, len(drawn) - 8 * number)
    if number == 2000 // 8:
      break
  assert 0 <= held < 1000
  assert not testing.drain(data)
  # Each example was read once.
  np.testing.assert_array_equal(np.sort(drawn), np.arange(2000))


def _counting_params(drawn, count):
  """Returns Params of a tf.data input that says which examples it gave."""
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def dataset():
    def examples():
      for i in range(count):
        drawn.append(i)
        yield i

    numbers = tf.data.Dataset.from_generator(
      examples, output_signature=tf.TensorSpec([], tf.int32)
    )
    return numbers.batch(5).map(lambda x: py_utils.NestedMap(x=x))

  return testing.tf_data_params(dataset)
