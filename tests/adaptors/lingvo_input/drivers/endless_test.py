"""Whether inputs end is known, or found out."""

import itertools
import random

import numpy as np
import pytest

from adaptors.lingvo_input import eval_adaptors, input_adaptor
from adaptors.lingvo_input.drivers import backends, endless, generator_driver
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators as testing
from tests.adaptors.lingvo_input import stock_data as stock


def _of_set(make):
  """Returns Params of an input of a tf.data set of numbers."""
  generators = stock.module('lingvo.core.base_input_generator')
  sources = stock.module('lingvo.core.datasource')
  nested = stock.module('lingvo.core.py_utils').NestedMap

  class Source(sources.TFDatasetSource):
    def GetDataset(self):  # noqa: N802
      data = stock.module('tensorflow').data
      return make(data).batch(2).map(lambda x: nested(x=x)).prefetch(1)

  return generators.BaseInputGenerator.Params().Set(
    file_datasource=Source.Params()
  )


def _positive(numbers):
  return numbers.filter(lambda x: x > 1)


_SETS = {
  'filtered': (lambda d: _positive(d.Dataset.range(6)), True),
  'filtered, repeated': (
    lambda d: _positive(d.Dataset.range(6)).shuffle(3).repeat(),
    False,
  ),
  'repeated, taken': (
    lambda d: _positive(d.Dataset.range(6)).repeat().take(4),
    True,
  ),
  'repeated, all taken': (
    lambda d: _positive(d.Dataset.range(6)).repeat().take(-1),
    False,
  ),
  'repeated twice': (lambda d: _positive(d.Dataset.range(6)).repeat(2), True),
  'counter': (lambda d: _positive(d.Dataset.counter()), False),
  'zipped': (
    lambda d: d.Dataset.zip(
      (d.Dataset.range(9).repeat(), _positive(d.Dataset.range(6)))
    ).map(lambda a, b: b),
    True,
  ),
  'of each file': (
    lambda d: _positive(d.Dataset.range(6)).interleave(
      lambda x: d.Dataset.from_tensors(x)
    ),
    True,
  ),
  'of each, repeated': (
    lambda d: _positive(d.Dataset.range(6)).interleave(
      lambda x: d.Dataset.from_tensors(x).repeat()
    ),
    None,
  ),
  'mixed': (
    lambda d: d.Dataset.sample_from_datasets(
      [_positive(d.Dataset.range(6)), _positive(d.Dataset.range(9))]
    ),
    True,
  ),
  'generated': (
    lambda d: d.Dataset.from_generator(lambda: iter(range(5)), np.int64, []),
    None,
  ),
}


@pytest.mark.parametrize('make, ends', _SETS.values(), ids=_SETS)
def test_tf_data_sets(make, ends):
  driver = generator_driver.GeneratorDriver(
    params=_of_set(make), settings=backends.Settings('the input', {})
  )
  assert driver.finite is ends
  driver.close()


def _counting():
  generators = stock.module('lingvo.core.trainer_test_utils')
  return generators.CountingInputGenerator.Params()


def _iota(number=''):
  generators = stock.module('lingvo.tasks.lm.input_generator')
  return stock.sequences(generators.LmInput.Params(), f'iota:{number}')


def _evaluated(params, cls=eval_adaptors.LingvoEvalAdaptor, **fields):
  if cls is eval_adaptors.LingvoEvalAdaptor:
    fields = {'batch_size': 4, **fields}
  adaptor = cls(input=params, reset_for_eval=True, **fields)
  try:
    return testing.drain(adaptor)
  finally:
    adaptor.close()


@pytest.mark.parametrize('make', [_counting, _iota])
@pytest.mark.parametrize(
  'cls',
  [eval_adaptors.LingvoEvalAdaptor, input_adaptor.LingvoInputAdaptor],
)
def test_examples_that_are_made_up_have_no_end(make, cls):
  with pytest.raises(errors.UserError, match='never ends: an evaluation needs'):
    _evaluated(make(), cls)
  if cls is input_adaptor.LingvoInputAdaptor:
    for fields in ({'num_batches': 3}, {'eval_loop_num_batches': 3}):
      adaptor = cls(input=make(), reset_for_eval=True, **fields)
      for _ in range(3):
        adaptor.get_next()
      adaptor.close()


def test_a_counter_with_a_number_ends():
  batches = _evaluated(_iota(10))
  assert sum(b.eval_sample_weights.sum() for b in batches) == 10


def test_a_reader_that_repeats_is_no_evaluation_of_all():
  params = _iota(10).Set(repeat_count=-1)
  with pytest.raises(errors.UserError, match='never ends'):
    _evaluated(params, input_adaptor.LingvoInputAdaptor)


def _shuffled_for_ever(count):
  rng = random.Random(0)
  while True:
    yield from rng.sample(range(count), count)


@pytest.mark.parametrize('count', [20, 600])
@pytest.mark.parametrize(
  'cls',
  [eval_adaptors.LingvoEvalAdaptor, input_adaptor.LingvoInputAdaptor],
)
def test_examples_that_come_again_in_another_order(count, cls):
  params = _of_set(
    lambda d: d.Dataset.from_generator(
      lambda: _shuffled_for_ever(count), np.int64, []
    )
  )
  with pytest.raises(errors.UserError, match='were all repeated'):
    _evaluated(params, cls)


def test_examples_that_are_alike_are_no_repetition():
  # Two thousand of 700 kinds, of which none comes as often as the first ones.
  values = [*range(256), *(256 + i % 444 for i in range(1744))]
  params = _of_set(
    lambda d: d.Dataset.from_generator(lambda: iter(values), np.int64, [])
  )
  batches = _evaluated(params)
  assert sum(b.eval_sample_weights.sum() for b in batches) == 2000


def test_texts_are_compared_by_what_they_say():
  guard = endless.RepetitionGuard('x', 'do something')
  texts = np.array([b'%d' % i for i in range(300)], object)
  guard(NestedMap(text=texts), 300)
  again = np.array([b'%d' % i for i in range(300)], object)
  with pytest.raises(errors.UserError, match='Do something'):
    guard(NestedMap(text=again), 600)


def test_so_many_examples_have_no_end(log):
  guard = endless.RepetitionGuard('x', 'do something')
  fresh = itertools.count()

  def batch():
    return NestedMap(x=np.array([next(fresh)]))

  for count in (99_999, 100_000, 150_000, 200_000):
    guard(batch(), count)
  assert log().count('is not known to end') == 2
  with pytest.raises(
    errors.UserError, match='10000000 examples, and is not known'
  ):
    guard(batch(), 10_000_000)
