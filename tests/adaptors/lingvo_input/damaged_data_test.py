"""Damaged data: errors that name file and record, or records left out.

At each of these, Lingvo's readers wait forever, repeat one record forever, end
the process, or silently drop records.
"""

import gzip
import os

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import (
  eval_adaptors,
  input_adaptor,
)
from adaptors.lingvo_input.checks import reader_params, record_trial
from pax_compat import errors
from tests.adaptors.lingvo_input import damaged_files
from tests.adaptors.lingvo_input import generators as testing
from tests.pax_compat import launching
from tests.pax_compat.trainer import lines

GOOD = list(range(damaged_files.COUNT))


def _numbers(params, *, skipped: int | None = None, **fields) -> list[int]:
  """Returns what a training input of the examples gives in an epoch.

  Args:
    params: Params of the generator.
    skipped: how many records are left out; None where none may be.
    **fields: of the input.
  """
  if skipped is not None:
    fields['skip_bad_records'] = True
  adaptor = input_adaptor.LingvoInputAdaptor(input=params, **fields)
  try:
    found = [
      int(n)
      for batch in testing.drain(adaptor)
      for n in batch.n[batch.eval_sample_weights > 0]
    ]
    expected = {} if skipped is None else {'input/skipped_records': skipped}
    assert adaptor.input_metrics() == expected
    return found
  finally:
    adaptor.close()


@pytest.mark.parametrize(
  ('kind', 'message', 'left'),
  [
    ('data', r'\(at byte 150\) does not match its checksum', [5]),
    ('length', r'\(at byte 150\) is truncated, or its length is', GOOD[5:]),
    ('length checksum', '.* has a wrong length, or checksum of it', GOOD[5:]),
    ('cut', r'\(at byte 150\) is .* nothing after it can be', GOOD[5:]),
    ('cut header', r'\(at byte 150\) is truncated', GOOD[5:]),
    ('cut checksum', r'\(at byte 150\) is truncated', GOOD[5:]),
  ],
)
def test_a_damaged_record_is_named_or_left_out(
  tmp_path, log, kind, message, left
):
  path = damaged_files.damaged(tmp_path / 'a.tfr', kind)
  params = damaged_files.params(f'tfrecord:{path}')
  with pytest.raises(errors.UserError, match=f'record 5 of {path} {message}'):
    _numbers(params)
  assert _numbers(params, skipped=1) == sorted({*GOOD} - {*left})
  assert f'leaves out 1 records of {path}, and keeps {20 - len(left)}' in log()


def test_every_damaged_record_is_counted(tmp_path, log):
  good = damaged_files.write(
    tmp_path / 'b', [damaged_files.example(i) for i in range(100, 103)]
  )
  path = tmp_path / 'a'
  damaged_files.damaged(path, 'data')
  content = bytearray(path.read_bytes())
  content[7 * 30 + 20] ^= 1
  path.write_bytes(content)
  params = damaged_files.params(f'tfrecord:{path},{good}')
  with pytest.raises(errors.UserError, match='record 5 of .*; record 7 of '):
    _numbers(params)
  left = [*(i for i in GOOD if i not in (5, 7)), 100, 101, 102]
  assert _numbers(params, skipped=2) == left
  assert 'leaves out 2 records of 1 files' in log()
  # Two hosts share what is left: of one reader, so that nothing is lost.
  hosts = [
    _numbers(
      params.Copy().Set(file_pattern=f'tfrecord:{path}'),
      skipped=2,
      num_infeed_hosts=2,
      infeed_host_index=host,
      is_training=True,
    )
    for host in range(2)
  ]
  assert hosts == [left[:18:2], left[1:18:2]]


def test_evaluation_leaves_out_the_same(tmp_path):
  path = damaged_files.damaged(tmp_path / 'a.tfr', 'data')
  fields = {'batch_size': 4, 'reset_for_eval': True, 'num_infeed_hosts': 2}
  params = damaged_files.params(f'tfrecord:{path}')
  with pytest.raises(errors.UserError, match='record 5 of'):
    eval_adaptors.LingvoEvalAdaptor(input=params, **fields)
  found = []
  for host in range(2):
    adaptor = eval_adaptors.LingvoEvalAdaptor(
      input=params, infeed_host_index=host, skip_bad_records=True, **fields
    )
    for _ in range(2):
      for batch in testing.drain(adaptor):
        found += batch.n[batch.eval_sample_weights > 0].tolist()
      adaptor.reset()
    assert adaptor.num_samples == 19
    adaptor.close()
  assert sorted(found) == sorted(2 * [i for i in GOOD if i != 5])


def test_compressed_files(tmp_path):
  path = tmp_path / 'a.gz'
  damaged_files.write(path, compression='GZIP')
  whole = path.read_bytes()
  params = damaged_files.params(f'tfrecord_gzip:{path}')
  assert _numbers(params) == GOOD
  path.write_bytes(whole[: len(whole) * 2 // 3])
  with pytest.raises(
    errors.UserError, match=r'record (\d+) of \S+ is truncated'
  ):
    _numbers(params)
  kept = _numbers(params, skipped=1)
  assert 0 < len(kept) < 20 and kept == GOOD[: len(kept)]
  path.write_bytes(whole[:-6] + b'abc' + whole[-3:])
  with pytest.raises(errors.UserError, match='no record can be read.*decompr'):
    _numbers(params, skipped=1)
  # A wrong record within a sound compression.
  inside = damaged_files.damaged(tmp_path / 'a', 'data')
  path.write_bytes(gzip.compress((tmp_path / 'a').read_bytes()))
  with pytest.raises(errors.UserError, match='record 5 of .* its checksum'):
    _numbers(params)
  for pattern, wrong in [
    (f'tfrecord_gzip:{inside}', 'is not compressed by gzip, in spite of'),
    (f'tfrecord:{path}', 'is compressed by gzip, but .* tfrecord'),
    (f'text:{path}', 'is compressed by gzip, but .* text'),
  ]:
    with pytest.raises(errors.UserError, match=wrong):
      _numbers(params.Copy().Set(file_pattern=pattern))


def test_files_of_another_kind(tmp_path):
  lines = testing.write_lines(tmp_path / 'lines', ['some text'] * 9)
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'empty').write_bytes(b'')
  good = damaged_files.write(tmp_path / 'good')
  for pattern, wrong in [
    (f'tfrecord:{lines[5:]}', 'record 0 of .*does not begin as a record of'),
    (
      f'tfrecord:{tmp_path}/fol*',
      r"'\S+/fol\*', .* matches the folder .*/folder",
    ),
    (f'text:{tmp_path}/folder', 'matches the folder'),
    (f'text:{good}', 'record 0 of .*good contains TFRecords, but .* text'),
    (f'tfrecord:{tmp_path}/missing', 'no file matches .*/missing'),
    ('tfrecord:', "'tfrecord:', which does not name a file"),
    (f'tfrecord:{tmp_path}/empty', 'are empty'),
    (f'recordio:{good}', "format 'recordio'; expected one of text"),
  ]:
    with pytest.raises(errors.UserError, match=wrong):
      _numbers(damaged_files.params(pattern))
  both = f'tfrecord:{tmp_path}/[eg]*'
  assert _numbers(damaged_files.params(both)) == GOOD


def test_any_bytes_are_text(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'ab\xff\xfe\nc\x00d\n\r\n')
  params = testing.lm_params(f'text:{tmp_path}/a.txt', repeat_count=1)
  adaptor = input_adaptor.LingvoInputAdaptor(input=params)
  assert adaptor.get_next().eval_sample_weights.tolist() == [1, 1, 1, 0]
  adaptor.close()


@pytest.mark.parametrize(
  ('record', 'message'),
  [
    (b'\xff\xff not an example', 'Could not parse example'),
    (b'', 'n .* is required but could not be found'),
  ],
)
def test_a_record_that_is_no_such_example(tmp_path, log, record, message):
  _check_refused(tmp_path, log, record, message)


def test_an_image_that_cannot_be_decoded(tmp_path, log):
  record = damaged_files.example(5, image=b'no image')
  image = damaged_files.png()
  _check_refused(tmp_path, log, record, 'Unknown image file', image=image)


def _check_refused(tmp_path, log, record: bytes, message: str, **more: bytes):
  records = [damaged_files.example(i, **more) for i in GOOD]
  path = damaged_files.write(
    tmp_path / 'a', [*records[:5], record, *records[6:]]
  )
  params = damaged_files.params(f'tfrecord:{path}', image=bool(more))
  expected = f'refuses record 5 of {path}: .*{message}'
  with pytest.raises(errors.UserError, match=expected):
    _numbers(params)
  kept = [i for i in GOOD if i != 5]
  assert _numbers(params, skipped=1) == kept
  assert 'leaves out 1 of 20 records, which the generator refuses' in log()


def test_a_refused_record_of_a_copy_is_told_by_its_file(tmp_path, log):
  path = tmp_path / 'a'
  damaged_files.damaged(path, 'data')
  damaged_files.write(tmp_path / 'b', [b'\xff'])
  path.write_bytes(path.read_bytes() + (tmp_path / 'b').read_bytes())
  params = damaged_files.params(f'tfrecord:{path}')
  found = [
    _numbers(
      params,
      is_training=True,
      num_infeed_hosts=2,
      infeed_host_index=host,
      skipped=1 + host,  # Of the refused one only its host knows.
    )
    for host in range(2)
  ]
  left = [i for i in GOOD if i != 5]
  assert found == [left[::2], left[1::2]]
  assert '1 of 10 records, which the generator refuses' in log()
  assert f'the first is record 20 of {path}' in log()


def _tried(trial, path, process, *, skip=False) -> int:
  reader = reader_params.Reader(
    patterns=(f'tfrecord:{path}',),
    weights=(),
    repeat_count=1,
    in_order=True,
    bounds=(10,),
    limits=(2,),
    sizes={},
    processor='',
    types=(),
    padded=False,
  )
  return trial.check('the input', reader, process, skip=skip)


def test_each_input_tries_its_records_once(tmp_path):
  path = damaged_files.write(tmp_path / 'a')
  seen = []
  trial = record_trial.RecordTrial()
  for _ in range(2):
    assert _tried(trial, path, lambda source, record: seen.append(record)) == 0
  assert len(seen) == damaged_files.COUNT
  _tried(
    record_trial.RecordTrial(), path, lambda source, record: seen.append(record)
  )
  assert len(seen) == 2 * damaged_files.COUNT


def test_a_record_is_dropped_by_tensorflows_error_only(tmp_path):
  path = damaged_files.write(tmp_path / 'a')
  tf_errors = lingvo_runtime.tensorflow().errors

  class CancelledError(Exception):
    """Another one of the same name."""

  def drop(source, record):
    raise tf_errors.CancelledError(None, None, 'dropped')

  def fail(source, record):
    raise CancelledError('not TensorFlow')

  assert _tried(record_trial.RecordTrial(), path, drop) == 0
  with pytest.raises(errors.UserError, match='record 0 of .*not TensorFlow'):
    _tried(record_trial.RecordTrial(), path, fail)
  assert _tried(record_trial.RecordTrial(), path, fail, skip=True) == 20


@pytest.mark.parametrize(
  ('kind', 'repeat_count'),
  [
    ('data', -1),  # The reader gives this record for ever.
    ('cut header', 1),  # It takes it for the end.
  ],
)
def test_damage_beyond_the_limit_is_found(tmp_path, log, kind, repeat_count):
  good = damaged_files.write(tmp_path / 'good')
  bad = damaged_files.damaged(tmp_path / 'bad', kind)
  params = damaged_files.params(f'tfrecord:{good},{bad}')
  params.repeat_count = repeat_count
  expected = (
    f'record 5 of {bad} .* .found while the input was read.; replace the'
  )
  with pytest.raises(errors.UserError, match=expected):
    _numbers(params, bytes_to_check=600)
  size = os.path.getsize(bad)
  assert f'1 files of {size} bytes, the first of which is {bad},' in log()


def train_on_damage(path, folder):
  """Trains on a damaged file, which is not checked before."""

  class Damaged(lines.Lines):
    def datasets(self):
      params = damaged_files.params(f'tfrecord:{path}').Set(repeat_count=-1)
      return [
        input_adaptor.LingvoInputAdaptor.config(
          input=params, is_training=True, bytes_to_check=0
        )
      ]

  try:
    Damaged(lines.task()).train(folder)
  except errors.UserError as e:
    print(e)


@pytest.mark.slow
def test_a_run_ends_whose_reader_waits_behind_damage(tmp_path):
  """In a separate process, as nothing ends the reader's waiting."""
  path = damaged_files.damaged(tmp_path / 'bad', 'cut')
  done = launching.run_function(train_on_damage, path, tmp_path / 'run')
  assert f'record 5 of {path}' in done.stdout, done.stderr
  assert 'found while the input was read' in done.stdout


def test_what_was_checked_is_not_checked_again(tmp_path, log):
  params = damaged_files.params(
    f'tfrecord:{damaged_files.write(tmp_path / "a")}'
  )
  for _ in range(2):
    assert _numbers(params, bytes_to_check=0) == GOOD
  assert log().count('1 files of 600 bytes') == 1
