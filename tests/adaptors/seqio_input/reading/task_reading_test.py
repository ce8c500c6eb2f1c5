"""Tests of reading SeqIO tasks, and of its errors."""

import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors.seqio_input import tiny_tasks as testing


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  with testing.common_tasks():
    yield


def test_cached_tasks(tmp_path):
  seqio = lingvo_runtime.seqio()
  testing.register(
    'cached',
    preprocessors=[
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      seqio.preprocessors.append_eos,
    ],
  )
  params = testing.config('cached', use_cached=True, shuffle=False)
  with pytest.raises(errors.UserError, match='task cached is not in'):
    params.Instantiate()
  testing.write_cache(tmp_path, 'cached', [[10, 11], [12]])
  before = list(seqio.utils.get_global_cache_dirs())
  seqio.add_global_cache_dirs([str(tmp_path)])
  try:
    data = params.Instantiate(num_infeed_hosts=2)
    [batch] = testing.read(data, 1)
  finally:
    seqio.utils.set_global_cache_dirs(before)

  assert batch.labels[:, :3].tolist() == [[10, 11, 1], [10, 11, 1]]
  params.set(use_cached=False)
  assert testing.texts(params.Instantiate(), testing.read(data, 1))


def test_inputs_do_not_disturb_each_other_by_their_read_configs():
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()
  found = []

  def reading(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    config = seqio.utils._TFDS_DATA_READ_CONFIG_OVERRIDE  # noqa: SLF001
    found.append(config and config.tag)
    if config:
      config.tag = 'changed'  # As SeqIO does.
    return tf.data.Dataset.from_tensor_slices(
      {'inputs': ['a'], 'targets': ['b']}
    )

  class ReadConfig:
    def __init__(self, tag):
      self.tag = tag

  testing.register(
    'reading', source=seqio.FunctionDataSource(reading, splits=['train'])
  )
  params = testing.config('reading', deterministic_input=True)
  one = ReadConfig('one')
  first = params.clone().set(read_config=one).Instantiate()
  params.clone().set(read_config=ReadConfig('two')).Instantiate()
  params.Instantiate()
  testing.read(first, 1)  # Its next epoch.

  assert found == ['one', 'two', None, 'one']
  assert one.tag == 'one'
  assert seqio.utils._TFDS_DATA_READ_CONFIG_OVERRIDE is None  # noqa: SLF001


def test_errors_of_the_data(tmp_path):
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()

  def refused(data):
    return data.map(
      lambda x: {**x, 'targets': tf.ensure_shape(x['targets'], [3])}
    )

  testing.register('none', 0)
  testing.register(
    'refused', preprocessors=[seqio.preprocessors.tokenize, refused]
  )
  testing.register(
    'missing',
    source=seqio.TextLineDataSource({'train': str(tmp_path / 'no*.txt')}),
  )
  for name, message in (
    ('none', "host 0 of 1 has no example of split 'train' of none"),
    ('refused', 'of refused cannot be read after 0 examples: .*not compat'),
    ('missing', 'of missing cannot be .*No file is found for the file pattern'),
  ):
    with pytest.raises(errors.UserError, match=message):
      testing.config(name).Instantiate().get_next()


def test_damaged_records_are_named(tmp_path):
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()
  path = tmp_path / 'records'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for _ in range(3):
      writer.write(b'some text')
  path.write_bytes(path.read_bytes()[:-9])

  def read(files):
    return tf.data.TFRecordDataset(files).map(
      lambda record: {'inputs': record, 'targets': tf.identity(record)}
    )

  testing.register(
    'damaged', source=seqio.FileDataSource(read, {'train': str(path)})
  )
  data = testing.config(
    'damaged', batch_size=1, shuffle=False, repeat=False
  ).Instantiate()

  testing.read(data, 2)
  for _ in range(2):  # It is not the end of the data.
    with pytest.raises(errors.UserError) as e:
      data.get_next()
    assert f'after 2 examples: record 2 of {path} (at byte' in str(e.value)


def test_errors_of_preprocessing_name_their_line():
  def lacking(data):
    return data.map(lambda x: {**x, 'targets': x['target']})

  def failing():
    raise ZeroDivisionError('in the code of a user')

  def calling(data):
    tf = lingvo_runtime.tensorflow()
    return data.map(
      lambda x: {
        **x,
        'targets': tf.ensure_shape(
          tf.py_function(failing, [], tf.int32), [None]
        ),
      }
    )

  tokenize = lingvo_runtime.seqio().preprocessors.tokenize
  testing.register('lacking', preprocessors=[lacking])
  testing.register('failing', preprocessors=[tokenize, calling])

  with pytest.raises(errors.UserError) as e:
    testing.config('lacking').Instantiate()
  assert "KeyError: 'target'" in str(e.value) and __file__ in str(e.value)
  # Not a wrong name or field, so the error is not shortened.
  with pytest.raises(Exception, match='in the code of a user') as e:
    testing.config('failing').Instantiate().get_next()
  assert not isinstance(e.value, errors.UserError)
