"""Tests of which files and records each host reads, with Lingvo's readers."""

import os
import shutil

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import (
  host_files,
  input_adaptor,
)
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing

FILES = 5
LINES = 13


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  """Returns a folder of five files of lines that all differ."""
  folder = tmp_path_factory.mktemp('files')
  lines = testing.unique_lines(FILES * LINES)
  for i in range(FILES):
    testing.write_lines(
      folder / f'part{i}.txt', lines[i * LINES : (i + 1) * LINES]
    )
  return folder


def _adaptor(params, hosts: int, host: int, **fields):
  return input_adaptor.LingvoInputAdaptor(
    input=params,
    is_training=True,
    num_infeed_hosts=hosts,
    infeed_host_index=host,
    **fields,
  )


def _texts(params, hosts: int, host: int, **fields) -> set[str]:
  """Returns the lines that a host of a training run reads in some epochs."""
  adaptor = _adaptor(params, hosts, host, **fields)
  found = set()
  for _ in range(4 * FILES * LINES // 4):
    found.update(testing.texts(adaptor.get_next(), weighted=True))
  adaptor.close()
  return found


@pytest.mark.parametrize('hosts', [2, 5])
def test_hosts_share_no_example(folder, hosts, log):
  params = testing.lm_params(f'text:{folder}/part*.txt', file_buffer_size=8)
  before = params.ToText()
  found = [_texts(params, hosts, host) for host in range(hosts)]
  assert sum(map(len, found)) == FILES * LINES
  assert len(set.union(*found)) == FILES * LINES
  assert params.ToText() == before
  assert f'host 0 of {hosts} reads {-(-FILES // hosts)} of 5 files' in log()


def test_hosts_share_the_records_of_too_few_files(folder, log):
  params = testing.lm_params(f'text:{folder}/part[12].txt', file_buffer_size=8)
  before = params.ToText()
  found = [_texts(params, 3, host) for host in range(3)]
  # The first record of the second file is of the second host.
  assert [len(texts) for texts in found] == [9, 9, 8]
  assert len(set.union(*found)) == 2 * LINES
  assert params.ToText() == before
  assert 'host 2 of 3 reads one of every 3 records of 2 files' in log()
  assert 'copied 8 of 26 records of 2 files, 56 bytes, to' in log()


def test_copies_are_removed_with_the_input(folder):
  params = testing.lm_params(f'text:{folder}/part1.txt', file_buffer_size=8)
  adaptor = _adaptor(params, 2, 1)
  adaptor.get_next()
  copies = adaptor._generator.records.copies.folder
  assert os.listdir(copies) == ['00000']
  adaptor.reset()
  adaptor.get_next()
  assert adaptor._generator.records.copies.folder == copies
  adaptor.close()
  assert not os.path.exists(copies)


def test_records_may_stay_together(folder, log):
  params = testing.lm_params(f'text:{folder}/part0.txt', file_buffer_size=8)
  found = [_texts(params, 2, host, split_records=False) for host in range(2)]
  assert all(len(texts) == LINES for texts in found)
  assert 'each of 2 hosts reads all 1 files' in log()


def test_what_cannot_be_shared_is_refused(folder, tmp_path, monkeypatch):
  few = testing.write_lines(tmp_path / 'few.txt', ['abc'])
  with pytest.raises(errors.UserError, match='few.txt have 1 records for 2 ho'):
    _adaptor(testing.lm_params(few), 2, 0).get_next()
  usage = shutil.disk_usage(tmp_path)._replace(free=40)
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  params = testing.lm_params(f'text:{folder}/part0.txt')
  with pytest.raises(errors.UserError, match='about 45 bytes .* 40 bytes free'):
    _adaptor(params, 2, 0).get_next()


def _own_patterns(pattern, host: int, hosts: int = 2, **fields):
  """Returns the patterns of one host, and the records that they match."""
  params = testing.lm_params(pattern, **fields)
  records = host_files.HostRecords(
    'the input',
    params,
    hosts=hosts,
    host=host,
    split_records=True,
    skip_bad_records=False,
    bytes_to_check=None,
  )
  return records.prepare(params).file_pattern, records


def test_patterns_of_every_kind(folder):
  parts = [f'{folder}/part{i}.txt' for i in range(FILES)]
  listed = f'text:{parts[0]},{parts[1]},{parts[2]}'
  assert _own_patterns(listed, 1)[0] == f'text:{parts[1]}'
  # Several patterns in one reader.
  joined = [f'text:{folder}/part[01].txt', f'{folder}/part[23].txt']
  assert _own_patterns(joined, 0)[0] == [f'text:{parts[0]}', parts[2]]
  # A reader of each pattern; what else belongs to a pattern stays.
  mixed = [
    (f'text:{folder}/part[01].txt', 0.25),
    (f'text:{folder}/part[234].txt', 0.75),
  ]
  assert _own_patterns(mixed, 1)[0] == [
    (f'text:{parts[1]}', 0.25),
    (f'text:{parts[3]}', 0.75),
  ]
  # One of them has too few files.
  own, records = _own_patterns(mixed, 1, hosts=3)
  folder = records.copies.folder
  assert own == [
    (f'text:{folder}/00000,{folder}/00001', 0.25),
    (f'text:{parts[3]}', 0.75),
  ]
  records.close()


def test_a_list_that_is_mixed_within_batches(folder, log):
  parts = [f'{folder}/part{i}.txt' for i in range(FILES)]
  mixed = [(f'text:{folder}/part[01].txt', 1.0), (f'text:{parts[2]}', 2.0)]
  fields = {'use_within_batch_mixing': True}
  own, records = _own_patterns(mixed, 1, **fields)
  copy = f'text:{records.copies.folder}/00000'
  assert own == [(f'text:{parts[1]}', 1.0), (copy, 2.0)]
  records.close()
  # A pattern becomes one file only.
  three = [(f'text:{folder}/part[012].txt', 1.0), (f'text:{folder}/p*', 2.0)]
  assert _own_patterns(three, 1, **fields)[0] == three
  assert 'each of 2 hosts reads all 5 files' in log()


@pytest.mark.parametrize('compression', ['', 'GZIP'])
def test_frames_are_copied_as_they_are(tmp_path, compression):
  tf = lingvo_runtime.module('tensorflow')
  path = str(tmp_path / 'a')
  data = [b'x' * i for i in range(7)]
  with tf.io.TFRecordWriter(path, compression) as writer:
    for record in data:
      writer.write(record)
  file_type = 'tfrecord_gzip' if compression else 'tfrecord'
  read = {}
  for host in range(3):
    own, records = _own_patterns(f'{file_type}:{path}', host, hosts=3)
    copy = own.removeprefix(f'{file_type}:')
    dataset = tf.data.TFRecordDataset(copy, compression)
    read[host] = list(dataset.as_numpy_iterator())
    records.close()
  assert read == {host: data[host::3] for host in range(3)}


def test_what_reads_no_files_stays(log):
  assert _own_patterns('iota:10', 1)[0] == 'iota:10'
  assert 'files' not in log()


def test_a_generator_may_see_to_it_itself(folder, log):
  params = testing.lm_params(f'text:{folder}/part*.txt')
  adaptor = _adaptor(params, 2, 0, split_files=False)
  adaptor.get_next()
  adaptor.close()
  assert 'reads 3 of 5' not in log()
