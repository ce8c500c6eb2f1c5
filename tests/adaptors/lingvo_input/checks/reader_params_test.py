"""What would end or hang Lingvo's native readers is an error before."""

import pytest

from adaptors.lingvo_input import input_adaptor
from pax_compat import errors
from tests.adaptors.lingvo_input import stock_data as stock


@pytest.fixture(name='first_batch')
def _first_batch(tmp_path):
  """Returns the first batch of a generator of records."""

  def batch(params, **fields):
    adaptor = input_adaptor.LingvoInputAdaptor(input=params, **fields)
    try:
      return adaptor.get_next()
    finally:
      adaptor.close()

  stock.text_file(tmp_path, 'a.txt', stock.texts(20))
  return batch


def _lm(folder, pattern='text:{}/a.txt', **fields):
  generators = stock.module('lingvo.tasks.lm.input_generator')
  return stock.sequences(
    generators.LmInput.Params(), pattern.format(*[folder] * 9), **fields
  )


def _custom(folder, process, **options):
  """Returns Params of a generator with its own processor of a record."""
  generators = stock.module('lingvo.core.base_input_generator')
  generic = stock.module('lingvo.core.generic_input')

  class Custom(generators.BaseSequenceInputGenerator):
    def _DataSourceFromFilePattern(self, file_pattern, **unused):  # noqa: N802
      options_of_reader = {**self.CommonInputOpArgs(), **options}
      batch, _ = generic.GenericInput(
        file_pattern=file_pattern, processor=process, **options_of_reader
      )
      return batch

  return stock.sequences(Custom.Params(), f'text:{folder}/a.txt')


def _one(**leaves):
  nested = stock.module('lingvo.core.py_utils').NestedMap
  return nested(**leaves), 1


@pytest.mark.parametrize(
  'fields, expected',
  [
    ({'file_buffer_size': 0}, 'file_buffer_size is 0; expected at least 1'),
    ({'file_parallelism': 0}, 'file_parallelism is 0'),
    ({'num_batcher_threads': 0}, 'num_threads is 0'),
    ({'bucket_batch_limit': [0]}, r'bucket_batch_limit is \[0\]'),
    ({'pattern': '{}/a.txt'}, 'has no format; expected one of text,'),
    ({'pattern': 'tfrecords:{}/a.txt'}, "'tfrecords'.*did you mean: tfrecord"),
    ({'pattern': 'text:{}/a.txt,text:{}/a.txt'}, "format 'text' again|no file"),
    ({'pattern': 'text:{}/a.txt;{}/a.txt'}, 'joins files by ";"'),
  ],
)
def test_settings(first_batch, tmp_path, fields, expected):
  with pytest.raises(errors.UserError, match=expected):
    first_batch(_lm(tmp_path, **fields), is_training=True)


def test_records_that_no_bucket_takes(first_batch, tmp_path):
  tf = stock.module('tensorflow')
  generators = stock.module('lingvo.tasks.mt.input_generator')
  record = stock.example(inputs=range(9), targets=range(8))
  path = stock.record_file(tmp_path, 'a.tfrecord', [record] * 5)
  params = stock.sequences(generators.MlPerfInput.Params(), f'tfrecord:{path}')
  first_batch(params)
  params.bucket_upper_bound = [7]
  expected = 'of 5, 5 have bucket keys from 9 to 9, with 7 as the largest'
  with pytest.raises(errors.UserError, match=expected):
    first_batch(params, is_training=True)
  negative = _custom(tmp_path, lambda r: (_one(x=r)[0], tf.constant(-1)))
  with pytest.raises(errors.UserError, match='20 have bucket keys from -1'):
    first_batch(negative)


def test_records_that_the_generator_refuses(first_batch, tmp_path):
  tf = stock.module('tensorflow')
  numbers = _custom(tmp_path, lambda r: _one(x=tf.strings.to_number(r)))
  expected = 'fails at 20, first at a record of .*a.txt: .*could not .*convert'
  with pytest.raises(errors.UserError, match=expected):
    first_batch(numbers)
  # A single column in place of two.
  generators = stock.module('lingvo.tasks.mt.input_generator')
  params = stock.sequences(
    generators.TextPackedInput.Params(), f'text:{tmp_path}/a.txt'
  )
  with pytest.raises(errors.UserError, match='drop every record'):
    first_batch(params)


def test_examples_that_no_batch_can_hold(first_batch, tmp_path):
  tf = stock.module('tensorflow')
  ragged = _custom(
    tmp_path, lambda r: _one(x=tf.strings.unicode_decode(r, 'UTF-8'))
  )
  with pytest.raises(errors.UserError, match='expected the same shapes'):
    first_batch(ragged)
  ragged.bucket_batch_limit = [1]
  assert first_batch(ragged).x.shape[0] == 1
  padded = _custom(
    tmp_path,
    lambda r: _one(x=tf.strings.unicode_decode(r, 'UTF-8')),
    dynamic_padding_dimensions=[0],
    dynamic_padding_constants=[0],
  )
  assert first_batch(padded).x.shape[0] == 4
  double = _custom(tmp_path, lambda r: _one(x=tf.zeros([], tf.float64)))
  with pytest.raises(errors.UserError, match='makes tensors of float64'):
    first_batch(double)
  keys = _custom(tmp_path, lambda r: (_one(x=r)[0], tf.constant([1, 2])))
  with pytest.raises(errors.UserError, match='expected a single number'):
    first_batch(keys)


def test_repetition_that_a_generator_asks_for_by_itself(first_batch, tmp_path):
  once = _custom(tmp_path, lambda r: _one(x=r), repeat_count=1)
  with pytest.raises(errors.UserError, match='repeat_count 1 without require'):
    first_batch(once)


def test_types_of_leaves(first_batch, tmp_path):
  tf = stock.module('tensorflow')
  types = ('float32', 'bfloat16', 'bool', 'uint8', 'int32', 'int64')
  params = _custom(
    tmp_path,
    lambda r: _one(**{t: tf.cast(tf.ones([2]), t) for t in types}, text=r),
  )
  batch = first_batch(params)
  for name in types:
    assert batch[name].dtype.name == name
    assert batch[name].shape == (4, 2) and batch[name].all()
  assert batch.text.dtype == object and batch.text.shape == (4,)
  assert {t.decode() for t in batch.text} <= set(stock.texts(20))
