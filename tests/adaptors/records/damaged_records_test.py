"""Tests of naming the record over which tf.data failed."""

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import input_adaptor
from adaptors.records import damaged_records
from pax_compat import errors
from tests.adaptors.lingvo_input import damaged_files


@pytest.fixture(name='files')
def _files(tmp_path):
  """Returns a good file, and one to write."""
  return [damaged_files.write(tmp_path / 'good'), str(tmp_path / 'bad')]


def _explained(files, **spec) -> str:
  """Returns the explanation of the error of reading examples."""
  tf = lingvo_runtime.tensorflow()
  spec = spec or {'n': tf.io.FixedLenFeature([], tf.int64)}
  dataset = tf.data.TFRecordDataset(files).map(
    lambda record: tf.io.parse_single_example(record, spec)
  )
  with pytest.raises((tf.errors.OpError, UnicodeDecodeError)) as raised:
    list(dataset)
  outer = RuntimeError('something failed')
  outer.__cause__ = raised.value
  assert str(damaged_records.explain(outer, files)) == str(
    damaged_records.explain(raised.value, files)
  )
  return str(damaged_records.explain(raised.value, files))


def test_a_damaged_record(files, tmp_path):
  damaged_files.damaged(tmp_path / 'bad', 'data')
  expected = f'record 5 of {files[1]} (at byte 150) does not match its checksum'
  assert _explained(files) == expected
  damaged_files.damaged(tmp_path / 'bad', 'cut')
  assert 'is truncated, or its length is wrong' in _explained(files)


def test_a_missing_file(files):
  assert _explained(files) == f'the file {files[1]} does not exist'


def test_a_record_of_another_kind(files):
  tf = lingvo_runtime.tensorflow()
  good = damaged_files.example(1)
  damaged_files.write(files[1], [good, b'\xff none'])
  assert _explained(files) == f'record 1 of {files[1]} is not a tf.Example'
  damaged_files.write(
    files[1], [good, good, tf.train.Example().SerializeToString()]
  )
  assert _explained(files) == (
    f"record 2 of {files[1]} has no feature 'n'; it has []"
  )
  expected = _explained(files, n=tf.io.FixedLenFeature([], tf.string))
  assert (
    expected
    == f"record 0 of {files[0]} has a int64_list as feature 'n', not string"
  )


def test_what_is_not_about_a_record_stays_unexplained(files):
  tf = lingvo_runtime.tensorflow()
  damaged_files.write(files[1])
  error = tf.errors.DataLossError(None, None, 'something else')
  assert damaged_records.explain(error, files) is None
  assert damaged_records.explain(ValueError('none'), files) is None
  error = tf.errors.InvalidArgumentError(None, None, 'shapes differ')
  assert damaged_records.explain(error, files) is None


def test_a_tf_data_input_of_lingvo_names_the_record(files, tmp_path):
  tf = lingvo_runtime.module('tensorflow')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  spec = {'n': tf.io.FixedLenFeature([], tf.int64)}
  sources = lingvo_runtime.module('lingvo.core.datasource')

  class Source(sources.TFDatasetSource):
    @classmethod
    def Params(cls):  # noqa: N802
      p = super().Params()
      p.Define('file_pattern', '', 'Pattern of the files.')
      return p

    def GetDataset(self):  # noqa: N802
      paths = tf.io.gfile.glob(self.params.file_pattern)
      examples = tf.data.TFRecordDataset(paths).map(
        lambda x: tf.io.parse_single_example(x, spec)
      )
      return examples.batch(2).map(lambda x: py_utils.NestedMap(n=x['n']))

  damaged_files.damaged(tmp_path / 'bad', 'data')
  params = generators.BaseInputGenerator.Params().Set(
    file_datasource=Source.Params().Set(file_pattern=f'{tmp_path}/bad')
  )
  adaptor = input_adaptor.LingvoInputAdaptor(input=params)
  assert [adaptor.get_next().n.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
  with pytest.raises(errors.UserError, match=f'record 5 of {tmp_path}/bad'):
    adaptor.get_next()
  adaptor.close()
