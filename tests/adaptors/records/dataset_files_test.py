"""Tests of finding the files that tf.data sets read."""

import pytest

from adaptors import lingvo_runtime
from adaptors.records import dataset_files


@pytest.fixture(name='folder')
def _folder(tmp_path):
  """Returns a folder with two files and a folder in it."""
  for name in 'ab':
    (tmp_path / name).write_bytes(b'')
  (tmp_path / 'c').mkdir()
  return tmp_path


def _of_one(tf, path):
  return tf.data.Dataset.range(2).flat_map(
    lambda i: tf.data.TFRecordDataset(path)
  )


@pytest.mark.parametrize(
  ('make', 'found'),
  [
    (lambda tf, a, b: tf.data.TFRecordDataset([b, a, b]), 'ba'),
    (lambda tf, a, b: tf.data.TFRecordDataset(a).map(tf.strings.length), 'a'),
    (
      lambda tf, a, b: tf.data.TFRecordDataset(
        [a, b], 'GZIP', num_parallel_reads=2
      ).shuffle(3),
      'ab',
    ),
    (
      lambda tf, a, b: (
        tf.data.Dataset.list_files([a, b], shuffle=True)
        .shuffle(2)
        .repeat()
        .interleave(tf.data.TFRecordDataset, num_parallel_calls=2)
        .batch(2)
      ),
      'ab',
    ),
    (  # A file that a function has from outside.
      lambda tf, a, b: _of_one(tf, tf.constant(a)),
      'a',
    ),
    (  # A file that is named inside, and one that is not.
      lambda tf, a, b: tf.data.Dataset.range(2).flat_map(
        lambda i: tf.data.TFRecordDataset([a, tf.strings.format(b + '{}', i)])
      ),
      'a',
    ),
    (  # Others have no records.
      lambda tf, a, b: tf.data.Dataset.zip(
        (tf.data.TFRecordDataset(b), tf.data.TextLineDataset(a))
      ),
      'b',
    ),
    (lambda tf, a, b: tf.data.TFRecordDataset([a[:-1] + 'c', a + 'x']), ''),
    (lambda tf, a, b: tf.data.TFRecordDataset(a, 'ZLIB'), ''),
    (lambda tf, a, b: tf.data.TextLineDataset(a), ''),
    (lambda tf, a, b: tf.data.Dataset.from_tensor_slices([a, b]), ''),
    (
      lambda tf, a, b: tf.data.Dataset.from_generator(
        lambda: [b''], output_types=tf.string
      ),
      '',
    ),
  ],
)
def test_files_of_sets(folder, make, found):
  tf = lingvo_runtime.tensorflow()
  dataset = make(tf, f'{folder}/a', f'{folder}/b')
  names = sorted(dataset_files.record_files(dataset))
  assert names == sorted(f'{folder}/{name}' for name in found)
