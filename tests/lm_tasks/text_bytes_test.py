"""Tests of a text file as bytes."""

import doctest

import numpy as np
import pytest

from lm_tasks import text_bytes
from pax_compat import config as config_lib
from pax_compat import errors

_TEXT = 'Größe, 27 Bytes in 3 parts.\n'


@pytest.fixture(name='path')
def _path(tmp_path):
  path = tmp_path / 'text.txt'
  path.write_text(_TEXT, 'utf-8')
  return str(path)


def _epoch(path, **fields):
  fields = {'seq_len': 8, 'batch_size': 3, 'reset_for_eval': True, **fields}
  return text_bytes.BytesInput.config(path=path, **fields).Instantiate()


def test_the_example():
  result = doctest.testmod(text_bytes)
  assert result.attempted and not result.failed


def test_each_byte_is_predicted_once_from_the_previous_one(path):
  data = _epoch(path)
  assert data.num_samples == 4
  expected = _TEXT.encode()
  found = b''
  for _ in range(2):
    batch = data.get_next()
    for ids, labels, weights in zip(
      batch.ids, batch.labels, batch.weights, strict=True
    ):
      real = labels[weights > 0].astype(np.uint8).tobytes()
      before = ids[weights > 0].astype(np.uint8).tobytes()
      assert before == (b'\0' + expected)[len(found) :][: len(real)]
      found += real
    np.testing.assert_array_equal(batch.paddings, 1 - batch.weights)
    assert batch.segment_pos.tolist() == [[*range(8)]] * 3
    assert batch.ids.dtype == batch.segment_ids.dtype == np.int32
  assert found == expected
  with pytest.raises(StopIteration):
    data.get_next()


def test_ids_are_decoded_to_strings(path):
  batch = _epoch(path, seq_len=30).get_next()
  lengths = batch.weights.sum(axis=1).astype(int)
  grains = text_bytes.GrainBytesInput.config(dataset_fn=dict, batch_size=1)
  for data in (_epoch(path), grains.Instantiate()):
    assert data.ids_to_strings(batch.labels, lengths)[0] == _TEXT
    assert data.tokenizers() == {'': 'bytes'}


@pytest.mark.parametrize('fields', [{}, dict(is_training=True)])
def test_grain_gives_the_same_batches(path, fields):
  pytest.importorskip('grain')
  ours = _epoch(path, **fields)
  config = config_lib.Config(text_bytes.blocks, path=path, seq_len=8)
  grains = text_bytes.GrainBytesInput.config(
    dataset_fn=config, batch_size=3, reset_for_eval=True, **fields
  ).Instantiate()
  for _ in range(2):
    expected, found = ours.get_next(), grains.get_next()
    assert expected.keys() == found.keys()
    for name, x in expected.items():
      np.testing.assert_array_equal(found[name], x, strict=True)


def test_a_file_that_is_empty_or_not_there(path, tmp_path):
  with pytest.raises(
    errors.UserError, match=f'{path}-not cannot be read: No such file'
  ):
    _epoch(f'{path}-not').get_next()
  prompts = _epoch(f'{path}-not').prompts(['ab'])  # These need no file.
  assert prompts.ids.tolist() == [[0, 97, 98]]
  (tmp_path / 'empty').touch()
  assert _epoch(tmp_path / 'empty').num_samples == 0
