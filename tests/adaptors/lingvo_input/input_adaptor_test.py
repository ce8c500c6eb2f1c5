"""Tests of LingvoInputAdaptor with the real LmInput on small text files."""

import collections
import concurrent.futures
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import input_adaptor
from pax_compat import errors
from tests import resources
from tests.adaptors.lingvo_input import generators as testing

_ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(name='pattern')
def _pattern(tmp_path):
  return testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(60))


def test_import_loads_no_tensorflow():
  code = (
    'import sys, adaptors.lingvo_input, adaptors.lingvo_input.eval_adaptors\n'
    'assert "tensorflow" not in sys.modules and "lingvo" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code], check=True, cwd=_ROOT)


def test_batches_equal_those_of_lingvo(adapt, pattern):
  params = testing.lm_params(pattern)
  params.bucket_upper_bound, params.bucket_batch_limit = [40], [5]
  expected = testing.direct_batches(params, 12)
  adaptor = adapt(params.Copy().Set(repeat_count=1))
  batches = testing.drain(adaptor)
  for batch in batches:
    weights = batch.pop('eval_sample_weights')
    np.testing.assert_array_equal(weights, np.ones([5], np.float32))
  testing.assert_same(batches, expected)
  assert batches[0].ids.dtype == np.int32
  with pytest.raises(StopIteration):
    adaptor.get_next()


def test_an_input_is_called_as_its_generator(adapt, pattern):
  params = testing.lm_params(pattern, name='my_lines')
  assert adapt(params, is_training=True).name == 'my_lines'
  assert adapt(params, is_training=True, name='other').name == 'other'


def test_num_batches_ends(adapt, pattern):
  adaptor = adapt(testing.lm_params(pattern), num_batches=3, is_training=True)
  assert len(testing.drain(adaptor)) == 3
  adaptor.reset()
  assert len(testing.drain(adaptor)) == 3


@pytest.mark.parametrize('limits', [[4, 4, 4], [8, 4, 2]])
def test_training_has_one_shape_for_each_bucket(adapt, pattern, limits):
  params = testing.letters_params(pattern, bucket_batch_limit=limits)
  adaptor = adapt(params, is_training=True)
  shapes = collections.defaultdict(set)
  for _ in range(80):
    batch = adaptor.get_next()
    bucket = np.searchsorted([10, 20, 40], batch.bucket_keys.max())
    shapes[bucket].add(batch.ids.shape)
    for key in ('labels', 'paddings', 'weights'):
      assert batch[key].shape == batch.ids.shape
    assert (batch.paddings[:, -1] == 1).all() or batch.ids.shape[1] <= 41
  lengths = {0: 11, 1: 21, 2: 41}
  assert shapes == {i: {(limits[i], lengths[i])} for i in range(3)}
  assert set.union(*shapes.values()) <= set(adaptor.shapes())


def test_cut_batches_lose_no_position(adapt, pattern):
  params = testing.letters_params(pattern, repeat_count=1)
  cut = adapt(params)
  whole = adapt(params, pad_to_bucket_bounds=False)
  lines = [t for b in testing.drain(cut) for t in testing.texts(b) if t]
  kept = [t for b in testing.drain(whole) for t in testing.texts(b) if t]
  assert lines == kept and len(lines) == 60


def test_keys_that_count_words_give_lengths_by_halves(adapt, tmp_path, log):
  # One word each, so all are in the first bucket, but of up to 34 positions.
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(60))
  params = testing.lm_params(pattern, bucket_batch_limit=[8, 4, 2])
  adaptor = adapt(params, is_training=True)
  batches = [adaptor.get_next() for _ in range(60)]
  for batch in batches:
    rows, length = batch.ids.shape
    assert rows == 8
    longest = int((1 - batch.paddings).sum(axis=1).max())
    assert length == min(n for n in (12, 24, 48) if n >= longest)
  assert 'do not count positions' in log()


def test_short_batches_are_filled_with_rows_that_do_not_count(
  adapt, tmp_path, log
):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(6))
  params = testing.letters_params(pattern, repeat_count=1)
  batches = testing.drain(adapt(params, is_training=True))
  assert [b.ids.shape for b in batches] == [(4, 11), (4, 11)]
  last = batches[-1]
  np.testing.assert_array_equal(last.eval_sample_weights, [1, 1, 0, 0])
  assert last.paddings[2:].all() and not last.weights[2:].any()
  assert log().count('came short') == 1


def test_user_params_stay_as_they_are(adapt, pattern):
  params = testing.lm_params(pattern, file_random_seed=7)
  before = params.ToText()
  adaptor = adapt(
    params,
    is_training=True,
    allow_fixed_file_random_seed=True,
    num_infeed_hosts=3,
    infeed_host_index=2,
  )
  adaptor.get_next()
  adaptor.reset()
  adaptor.resume_at(5)
  adaptor.get_next()
  assert params.ToText() == before


def test_fixed_seed_is_refused_for_training(adapt, pattern):
  params = testing.lm_params(pattern, file_random_seed=301)
  with pytest.raises(errors.UserError, match='preempted.*same data again'):
    adapt(params, is_training=True)
  adapt(params, is_training=False)
  adapt(params, is_training=True, allow_fixed_file_random_seed=True)


def test_hosts_read_different_orders_that_do_not_drift(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(64))
  orders = []
  for host in (0, 1):
    params = testing.letters_params(pattern, file_random_seed=7)
    adaptor = adapt(
      params,
      is_training=True,
      allow_fixed_file_random_seed=True,
      num_infeed_hosts=2,
      infeed_host_index=host,
    )
    orders.append(
      [t for _ in range(8) for t in testing.texts(adaptor.get_next())]
    )
    seed = adaptor._generator.params.file_random_seed
    adaptor.reset()
    adaptor.get_next()
    assert adaptor._generator.params.file_random_seed == seed != 7
  assert orders[0] != orders[1]


def test_one_host_keeps_its_seed(adapt, pattern):
  params = testing.lm_params(pattern, file_random_seed=7)
  adaptor = adapt(params)
  assert adaptor._generator.params.file_random_seed == 7


def test_derived_seeds_differ_and_are_never_zero():
  seeds = {
    input_adaptor.derive_seed(seed, host, step)
    for seed in (1, 2, 301)
    for host in range(40)
    for step in (0, 1, 1000)
  }
  assert len(seeds) == 3 * 40 * 3
  assert min(seeds) > 0 and max(seeds) < 2**31 - 1


def test_resuming_reads_another_order(adapt, tmp_path, log):
  # Several files, whose order the seed decides, with nothing else at random.
  for i in range(16):
    lines = [f'{i:03d}{j}' for j in range(4)]
    testing.write_lines(tmp_path / f'a{i:02d}.txt', lines)
  params = testing.letters_params(
    f'text:{tmp_path}/a*.txt', file_random_seed=7, file_buffer_size=1
  )

  def order(step):
    adaptor = adapt(params, is_training=True, allow_fixed_file_random_seed=True)
    adaptor.resume_at(step)
    return [testing.texts(adaptor.get_next()) for _ in range(8)]

  fresh = order(0)
  assert fresh == order(0)
  assert 'cannot be positioned' not in log()
  assert order(10) == order(10) != fresh
  assert order(20) not in (fresh, order(10))
  assert 'cannot be positioned at batch 10' in log()
  adaptor = adapt(params, is_training=True, allow_fixed_file_random_seed=True)
  expected = (
    'it reads a fresh shuffle, of file_random_seed 7, the step and the host'
  )
  assert adaptor.after_restart() == expected


def test_resuming_without_a_seed_only_says_so(adapt, pattern, log):
  adaptor = adapt(testing.lm_params(pattern), is_training=True)
  adaptor.resume_at(3)
  assert 'a fresh random order, as file_random_seed is 0' in log()


def test_strings_are_dropped_and_named_once(adapt, pattern, log):
  adaptor = adapt(testing.letters_params(pattern), is_training=True)
  for _ in range(3):
    assert 'text' not in adaptor.get_next()
  adaptor.reset()
  adaptor.get_next()
  assert log().count('no device takes them: text') == 1


def test_ids_to_strings(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', ['hello there', 'to you'])
  adaptor = adapt(testing.lm_params(pattern, repeat_count=1))
  batch = adaptor.get_next()
  lengths = (1 - batch.paddings).sum(axis=1) - 1
  lengths = np.maximum(lengths, 0)
  for key in (None, None, 'default'):
    found = adaptor.ids_to_strings(batch.labels, lengths, key)
    assert found[:2] == ['hello there', 'to you']
  with pytest.raises(errors.UserError, match="no tokenizer 'src'"):
    adaptor.ids_to_strings(batch.labels, lengths, key='src')


def test_another_thread_may_read(adapt, pattern):
  adaptor = adapt(testing.lm_params(pattern), is_training=True)
  adaptor.get_next()
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    shapes = list(pool.map(lambda _: adaptor.get_next().ids.shape, range(20)))
  assert len(shapes) == 20
  fresh = adapt(testing.lm_params(pattern), is_training=True)
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    assert pool.submit(fresh.get_next).result().ids.shape[0] == 4


def test_closing_leaves_no_thread_behind(adapt, pattern):
  params = testing.lm_params(pattern, file_parallelism=8)
  for _ in range(2):  # The first use starts TensorFlow's own pools.
    first = adapt(params, is_training=True)
    first.get_next()
    first.close()
  before = resources.threads()
  adaptor = adapt(params, is_training=True)
  adaptor.get_next()
  assert len(resources.threads() - before) > 8
  adaptor.reset()
  adaptor.get_next()
  adaptor.close()
  adaptor.close()
  resources.wait_for_end(resources.threads() - before)
  with pytest.raises(RuntimeError, match='closed'):
    adaptor.get_next()


def test_lingvo_and_tensorflow_stay_in_eager_mode(adapt, pattern):
  adapt(testing.lm_params(pattern), is_training=True).get_next()
  tf = lingvo_runtime.module('tensorflow')
  assert tf.executing_eagerly()
  assert lingvo_runtime.module('lingvo.core.py_utils').IsEagerMode()


@pytest.mark.parametrize(
  'pattern',
  [
    'text:/no/such/file',
    'tfrecord:/no/such/*',
    '/no/such/file',
    'text:/no/such/file@4',
    'text:/no/such/file@*',
    'text:{here},/no/such/file',
    'text:{here};/no/such/file',
    ['text:{here}', '/no/such/file'],
    [('text:{here}', 0.5), ('text:/no/such/file', 0.5)],
  ],
)
def test_missing_files_are_named(adapt, tmp_path, pattern):
  here = tmp_path / 'a.txt'
  testing.write_lines(here, ['abc'])

  def fill(p):
    if isinstance(p, str):
      return p.format(here=here)
    if isinstance(p, tuple):
      return (fill(p[0]), p[1])
    return [fill(x) for x in p]

  with pytest.raises(errors.UserError, match='no file matches .*/no/such/'):
    adapt(testing.lm_params(fill(pattern)), is_training=True)


def test_sharded_pattern_finds_its_files(adapt, tmp_path):
  for i in range(2):
    testing.write_lines(tmp_path / f'a-{i:05d}-of-00002', [f'abc{i}'] * 4)
  for shards in ('2', '*'):
    params = testing.lm_params(f'text:{tmp_path}/a@{shards}', repeat_count=1)
    assert len(testing.drain(adapt(params))) == 2
  with pytest.raises(errors.UserError, match='not a sharded pattern'):
    adapt(testing.lm_params(f'text:{tmp_path}/a@two'))


def test_data_that_would_hang_the_reader_is_refused(adapt, tmp_path):
  long = testing.write_lines(tmp_path / 'long.txt', ['w ' * 50] * 20)
  with pytest.raises(errors.UserError, match='50 words.*drop every line'):
    adapt(testing.lm_params(long), is_training=True)
  empty = testing.write_lines(tmp_path / 'empty.txt', [])
  with pytest.raises(errors.UserError, match='empty'):
    adapt(testing.lm_params(empty), is_training=True)


def test_repeat_count_that_would_abort_is_handled(adapt, pattern, log):
  with pytest.raises(errors.UserError, match='at least 1'):
    adapt(testing.lm_params(pattern, repeat_count=0))
  weighted = [(pattern, 0.5), (pattern, 0.5)]
  with pytest.raises(errors.UserError, match='by weight'):
    adapt(testing.lm_params(weighted, repeat_count=1))
  adaptor = adapt(testing.lm_params(pattern, repeat_count=2), is_training=True)
  batches = testing.drain(adaptor)
  assert sum(b.eval_sample_weights.sum() for b in batches) == 120
  assert 'in order, without shuffling' in log()


def test_wrong_fields_are_refused(adapt, pattern):
  with pytest.raises(errors.UserError, match='batch_size is 8'):
    adapt(testing.lm_params(pattern), batch_size=8)
  with pytest.raises(errors.UserError, match='is a str'):
    adapt('lm.Input')
  with pytest.raises(errors.UserError, match='required'):
    input_adaptor.LingvoInputAdaptor()
  with pytest.raises(errors.UserError, match='expected one of 2 hosts'):
    adapt(testing.lm_params(pattern), num_infeed_hosts=2, infeed_host_index=2)
  with pytest.raises(errors.UserError, match='one limit for each'):
    adapt(testing.lm_params(pattern, bucket_batch_limit=[4]))


def test_tf_data_input_is_driven_by_a_function(adapt, log):
  params = _tf_data_params(count=10, batch=4)
  batches = testing.drain(adapt(params))
  assert [b.x.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
  assert 'is driven by a TensorFlow function' in log()


def test_generator_that_cannot_be_driven_is_reported(adapt):
  params = _tf_data_params(count=10, batch=4)
  params.file_datasource.load_fn = 'Broken'
  with pytest.raises(errors.UserError, match='(?s)function: .*session: '):
    adapt(params).get_next()


def test_a_wrong_name_is_reported_without_another_attempt(adapt):
  params = _tf_data_params(count=10, batch=4)
  params.file_datasource.load_fn = 'NoSuchMethod'
  expected = (
    '(?s)cannot be built: AttributeError: .*NoSuchMethod(?!.*session: )'
  )
  with pytest.raises(errors.UserError, match=expected):
    adapt(params).get_next()


def _tf_data_params(count, batch):
  tf = lingvo_runtime.module('tensorflow')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  sources = lingvo_runtime.module('lingvo.core.datasource')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class Generator(generators.BaseInputGenerator):
    def Load(self):  # noqa: N802
      numbers = tf.data.Dataset.range(count).batch(batch)
      return numbers.map(lambda x: py_utils.NestedMap(x=x))

    def Broken(self):  # noqa: N802
      raise ValueError('broken on purpose')

  class Source(sources.TFDatasetSource):
    @classmethod
    def Params(cls):  # noqa: N802
      p = super().Params()
      p.Define('load_fn', 'Load', 'Name of the method that gives the data.')
      return p

    def GetDataset(self):  # noqa: N802
      return getattr(self._input_generator, self.params.load_fn)()

  return Generator.Params().Set(file_datasource=Source.Params())
