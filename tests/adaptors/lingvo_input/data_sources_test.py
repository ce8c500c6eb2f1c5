"""Lingvo's DataSources and tf.data generators through the adaptors."""

import collections
import time

import numpy as np
import pytest

from adaptors.lingvo_input import eval_adaptors, input_adaptor
from adaptors.lingvo_input.drivers import generator_driver
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing
from tests.adaptors.lingvo_input import stock_data as stock


@pytest.fixture(name='lines')
def _lines(tmp_path):
  """Writes two files; returns the lines of each."""
  lines = {x: [f'{x}{i:03d}' for i in range(10)] for x in 'ab'}
  for x, of_file in lines.items():
    stock.text_file(tmp_path, f'{x}.txt', of_file)
  return lines


def _source(kind: str, folder):
  """Returns Params of a data source of the files a and b."""
  sources = stock.module('lingvo.core.datasource')
  simple = sources.SimpleDataSource.Params()
  a = simple.Copy().Set(file_pattern=f'text:{folder}/a.txt')
  b = simple.Copy().Set(file_pattern=f'text:{folder}/b.txt')
  return {
    'simple': simple.Copy().Set(
      file_type='text', file_pattern=[f'{folder}/a.txt', f'{folder}/b.txt']
    ),
    'prefixed': sources.PrefixedDataSource.Params().Set(
      file_type='text',
      file_pattern=['a.txt', 'b.txt'],
      file_pattern_prefix=str(folder),
    ),
    'cross batch': sources.CrossBatchMixingDataSource.Params().Set(
      sub=[a, b], weights=[0.5, 0.5]
    ),
    'within batch': simple.Copy().Set(
      file_pattern=[a.file_pattern, b.file_pattern], weights=[0.5, 0.5]
    ),
    'curriculum': sources.CurriculumDataSource.Params().Set(
      sub=[a, b], boundaries=[3]
    ),
    'tf.data': sources.TFDatasetPrefetch.Params().Set(sub=a),
  }[kind]


def _lm(kind: str, folder):
  generators = stock.module('lingvo.tasks.lm.input_generator')
  params = stock.sequences(generators.LmInput.Params(), '')
  return params.Set(file_datasource=_source(kind, folder))


def _texts(adaptor, batch) -> list[str]:
  lengths = (batch.paddings < 0.5).sum(axis=1) - 1
  texts = adaptor.ids_to_strings(batch.labels, np.maximum(lengths, 0))
  return [texts[row] for row in np.flatnonzero(batch.eval_sample_weights)]


@pytest.mark.parametrize('kind', ['simple', 'prefixed', 'cross batch'])
def test_training_reads_all_files(adapt, tmp_path, lines, kind):
  adaptor = adapt(_lm(kind, tmp_path), is_training=True)
  batches = [_texts(adaptor, adaptor.get_next()) for _ in range(40)]
  assert {t for texts in batches for t in texts} == {*lines['a'], *lines['b']}
  if kind == 'cross batch':
    assert all(len({t[0] for t in texts}) == 1 for texts in batches)


def test_tf_data_around_a_reader(adapt, tmp_path, lines):
  adaptor = adapt(_lm('tf.data', tmp_path), is_training=True)
  found = {t for _ in range(9) for t in _texts(adaptor, adaptor.get_next())}
  assert found == set(lines['a'])


@pytest.mark.parametrize('kind', ['simple', 'prefixed'])
@pytest.mark.parametrize('hosts', [1, 3])
def test_evaluation_reads_each_example_once(
  adapt, tmp_path, lines, kind, hosts
):
  found = []
  for host in range(hosts):
    adaptor = adapt(
      _lm(kind, tmp_path),
      eval_adaptors.LingvoEvalAdaptor,
      batch_size=3,
      reset_for_eval=True,
      num_infeed_hosts=hosts,
      infeed_host_index=host,
    )
    for batch in testing.drain(adaptor):
      found += _texts(adaptor, batch)
  assert sorted(found) == [*lines['a'], *lines['b']]


@pytest.mark.parametrize('kind', ['cross batch', 'within batch'])
def test_mixing_by_weight_has_no_order_to_evaluate_in(adapt, tmp_path, kind):
  del tmp_path
  with pytest.raises(errors.UserError, match='by weight'):
    adapt(
      _lm(kind, '/somewhere'),
      eval_adaptors.LingvoEvalAdaptor,
      batch_size=3,
      reset_for_eval=True,
    )


def test_curriculum_follows_the_training_step(adapt, tmp_path, lines):
  adaptor = adapt(_lm('curriculum', tmp_path), is_training=True)
  stages = [
    {t[0] for t in _texts(adaptor, adaptor.get_next())} for _ in 'abcde'
  ]
  assert stages == [{'a'}, {'a'}, {'a'}, {'b'}, {'b'}]
  resumed = adapt(_lm('curriculum', tmp_path), is_training=True)
  resumed.resume_at(2)
  stages = [{t[0] for t in _texts(resumed, resumed.get_next())} for _ in 'ab']
  assert stages == [{'a'}, {'b'}]
  held_out = adapt(_lm('curriculum', tmp_path), is_training=False)
  with pytest.raises(errors.UserError, match='depend on the training step'):
    held_out.get_next()


def test_within_batch_mixing_tells_the_source(adapt, tmp_path):
  for x in 'ab':
    pairs = [f'{x}{i}\t{x}{i}' for i in range(8)]
    stock.text_file(tmp_path, f'{x}.txt', pairs)
  generators = stock.module('lingvo.tasks.mt.input_generator')
  params = stock.sequences(generators.TextPackedInput.Params(), '').Set(
    file_datasource=_source('within batch', tmp_path)
  )
  adaptor = adapt(params)
  seen = collections.Counter()
  for _ in range(16):
    batch = adaptor.get_next()
    for text, source in zip(batch.src.strs, batch.src.source_ids, strict=True):
      seen[text[:1], int(source[0])] += 1
  assert set(seen) == {(b'a', 0), (b'b', 1)}


def _numbers(batch_size):
  tf = stock.module('tensorflow')
  numbers = tf.data.Dataset.range(10)
  return numbers.map(lambda i: {'x': i, 'text': tf.strings.as_string(i)}).batch(
    batch_size
  )


def _milan(folder):
  del folder
  generators = stock.module('lingvo.tasks.milan.input_generator')
  return generators.MilanInputGenerator.Params().Set(
    dataset_fn=_numbers, batch_size=4
  )


def _defined(folder):
  del folder
  generators = stock.module('lingvo.core.base_input_generator')
  return generators.DefineTFDataInput('Numbers', lambda: _numbers(4)).Params()


def _examples(folder):
  tf = stock.module('tensorflow')
  generators = stock.module('lingvo.core.base_input_generator')

  class Examples(generators.BaseDataExampleInputGenerator):
    def GetFeatureSpec(self):  # noqa: N802
      return {
        'x': tf.io.FixedLenFeature([], tf.int64),
        'text': tf.io.FixedLenFeature([], tf.string),
      }

  records = [stock.example(x=[i], text=str(i)) for i in range(10)]
  return Examples.Params().Set(
    input_files=stock.record_file(folder, 'x.tfrecord', records),
    dataset_type=tf.data.TFRecordDataset,
    batch_size=4,
    num_epochs=1,
    randomize_order=False,
  )


@pytest.mark.parametrize('make', [_milan, _defined, _examples])
@pytest.mark.parametrize('hosts', [1, 2])
def test_tf_data_generators(adapt, tmp_path, make, hosts):
  params, found = make(tmp_path), []
  for host in range(hosts):
    adaptor = adapt(
      params,
      eval_adaptors.LingvoEvalAdaptor,
      batch_size=2,
      reset_for_eval=True,
      cluster_do_eval=True,
      num_infeed_hosts=hosts,
      infeed_host_index=host,
    )
    for batch in testing.drain(adaptor):
      for row in np.flatnonzero(batch.eval_sample_weights):
        assert batch.text[row] == str(batch.x[row]).encode()
        found.append(int(batch.x[row]))
  assert sorted(found) == list(range(10))
  training = adapt(params, is_training=True)
  assert sorted(training.get_next()) == ['eval_sample_weights', 'x']


def test_files_that_are_not_there_are_no_empty_data(adapt, tmp_path):
  params = _examples(tmp_path).Set(input_files=f'{tmp_path}/nothing*')
  with pytest.raises(errors.UserError, match='No files matched'):
    adapt(params, is_training=True).get_next()


def test_threads_of_a_tf_data_set_keep_the_order_of_several_hosts(adapt):
  tf = stock.module('tensorflow')
  generators = stock.module('lingvo.core.base_input_generator')
  sources = stock.module('lingvo.core.datasource')
  nested = stock.module('lingvo.core.py_utils').NestedMap

  class Source(sources.TFDatasetSource):
    def GetDataset(self):  # noqa: N802
      def wait(x):
        time.sleep(0.3 * (x == 0))  # So that others overtake the first.
        return x

      def waited(x):
        return nested(x=tf.reshape(tf.numpy_function(wait, [x], tf.int64), []))

      numbers = tf.data.Dataset.range(16)
      return numbers.map(waited, num_parallel_calls=4).prefetch(1).batch(4)

  params = generators.BaseInputGenerator.Params().Set(
    file_datasource=Source.Params()
  )
  adaptor = adapt(
    params,
    eval_adaptors.LingvoEvalAdaptor,
    batch_size=16,
    reset_for_eval=True,
    num_infeed_hosts=2,
    infeed_host_index=0,
  )
  [batch] = testing.drain(adaptor)
  assert batch.x.tolist() == list(range(16))


def test_data_that_a_tf_data_set_drops_is_found_out(tmp_path, monkeypatch):
  # Set too short, so that the test need not wait.
  monkeypatch.setattr(generator_driver, '_SECONDS_TO_TRIAL', 0.2)
  tf = stock.module('tensorflow')
  generators = stock.module('lingvo.core.base_input_generator')
  nested = stock.module('lingvo.core.py_utils').NestedMap

  class Lengths(generators.TFDataSequenceInputGenerator):
    def LoadDataset(self, file_pattern):  # noqa: N802
      return tf.data.TextLineDataset(file_pattern)

    def ProcessDataset(self, dataset):  # noqa: N802
      return dataset.map(lambda line: nested(x=tf.strings.length(line)))

    def GetSequenceLength(self, example):  # noqa: N802
      return example.x

    def _InputShape(self, key):  # noqa: N802
      return () if key == 'x' else super()._InputShape(key)

  pattern = testing.write_lines(tmp_path / 'a.txt', ['seven!!'] * 9)
  params = Lengths.Params().Set(
    file_pattern=pattern.removeprefix('text:'),
    file_random_seed=0,
    bucket_upper_bound=[7],
    bucket_batch_limit=[2],
  )
  adaptor = input_adaptor.LingvoInputAdaptor(input=params, is_training=True)
  assert adaptor.get_next().x.tolist() == [7, 7]
  adaptor.close()
  params.bucket_upper_bound = [6]
  adaptor = input_adaptor.LingvoInputAdaptor(input=params, is_training=True)
  with pytest.raises(errors.UserError, match='drops all of its data'):
    adaptor.get_next()
  adaptor.close()


def test_a_first_batch_that_comes_late_ends_the_search_for_one(monkeypatch):
  monkeypatch.setattr(generator_driver, '_SECONDS_TO_TRIAL', 0.1)
  tf = stock.module('tensorflow')
  generators = stock.module('lingvo.core.base_input_generator')
  sources = stock.module('lingvo.core.datasource')
  nested = stock.module('lingvo.core.py_utils').NestedMap

  def late(x):
    time.sleep(0.5)
    return x

  class Source(sources.TFDatasetSource):
    def GetDataset(self):  # noqa: N802
      if self.cluster.require_sequential_input_order:
        # Minutes go by before it is known that there is nothing.
        numbers = tf.data.Dataset.range(10**8).filter(lambda x: x < 0)
      else:
        numbers = tf.data.Dataset.range(1).repeat()
        numbers = numbers.map(lambda x: tf.numpy_function(late, [x], tf.int64))
      return numbers.map(lambda x: nested(x=tf.reshape(x, [1])))

  params = generators.BaseInputGenerator.Params().Set(
    file_datasource=Source.Params()
  )
  adaptor = input_adaptor.LingvoInputAdaptor(input=params, is_training=True)
  start = time.monotonic()
  assert adaptor.get_next().x.tolist() == [0]
  assert time.monotonic() - start < 30
  adaptor.close()
