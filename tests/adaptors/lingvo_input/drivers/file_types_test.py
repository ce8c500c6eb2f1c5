"""Files whose type is put in front of the pattern by the generator itself."""

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import input_adaptor
from pax_compat import errors
from tests.adaptors.lingvo_input import damaged_files
from tests.adaptors.lingvo_input import generators as testing

GOOD = list(range(damaged_files.COUNT))


def _params(kind: str, paths: list[str]):
  """Returns Params of a generator of the examples of TFRecord files."""
  if kind == 'generator':
    return damaged_files.params(','.join(paths), prefix='tfrecord:')
  sources = lingvo_runtime.module('lingvo.core.datasource')
  simple = sources.SimpleDataSource.Params().Set(file_type='tfrecord')
  if kind == 'source':
    source = simple.Set(file_pattern=','.join(paths))
  elif kind == 'list':
    source = simple.Set(file_pattern=paths)
  else:
    folder, _, _ = paths[0].rpartition('/')
    source = sources.PrefixedDataSource.Params().Set(
      file_type='tfrecord',
      file_pattern=[path.rpartition('/')[2] for path in paths],
      file_pattern_prefix=folder,
    )
  return damaged_files.params('').Set(file_datasource=source)


def _numbers(params, **fields) -> list[int]:
  """Returns what a training input of the examples gives in an epoch."""
  adaptor = input_adaptor.LingvoInputAdaptor(
    input=params, is_training=True, **fields
  )
  try:
    return [
      int(n)
      for batch in testing.drain(adaptor)
      for n in batch.n[batch.eval_sample_weights > 0]
    ]
  finally:
    adaptor.close()


@pytest.mark.parametrize('kind', ['generator', 'source', 'list', 'prefixed'])
def test_they_are_checked_and_split_like_others(tmp_path, kind, log):
  good = damaged_files.write(tmp_path / 'good')
  bad = damaged_files.damaged(tmp_path / 'bad', 'data')
  params = _params(kind, [good, bad])
  before = params.ToText()
  with pytest.raises(errors.UserError, match=f'record 5 of {bad} '):
    _numbers(params)
  left = [*GOOD, *(i for i in GOOD if i != 5)]
  skipping = {'skip_bad_records': True}
  assert sorted(_numbers(params, **skipping)) == sorted(left)
  for host in range(3):
    found = _numbers(
      params, num_infeed_hosts=3, infeed_host_index=host, **skipping
    )
    assert sorted(found) == sorted(left[host::3])
  assert 'host 2 of 3 reads one of every 3 records of 2 files' in log()
  assert params.ToText() == before


@pytest.mark.parametrize('kind', ['source', 'list'])
def test_hosts_share_files_of_a_source(tmp_path, kind):
  paths = [
    damaged_files.write(tmp_path / name, [damaged_files.example(i)] * 3)
    for i, name in enumerate('abcd')
  ]
  params = _params(kind, paths)
  found = [
    _numbers(params, num_infeed_hosts=2, infeed_host_index=host)
    for host in range(2)
  ]
  assert found == [3 * [0] + 3 * [2], 3 * [1] + 3 * [3]]


def test_a_type_that_no_reader_is_given(tmp_path):
  path = damaged_files.write(tmp_path / 'a')
  with pytest.raises(errors.UserError, match='has no format; expected one of'):
    _numbers(damaged_files.params(path))
