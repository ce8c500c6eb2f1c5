"""Tests of which files each host reads, with Lingvo's own readers."""

import pytest

from adaptors import lingvo_input, lingvo_input_hosts
from tests.adaptors import lingvo_input_testing as testing

FILES = 5
LINES = 12


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


def _texts(params, hosts: int, host: int) -> set[str]:
  """Returns the lines that a host of a training run reads in some epochs."""
  adaptor = lingvo_input.LingvoInputAdaptor(
    input=params,
    is_training=True,
    num_infeed_hosts=hosts,
    infeed_host_index=host,
  )
  found = set()
  for _ in range(4 * FILES * LINES // 4):
    found.update(testing.texts(adaptor.get_next(), weighted=True))
  adaptor.close()
  return found


@pytest.mark.parametrize('hosts', [2, 3, 5])
def test_hosts_share_no_example(folder, hosts, log):
  params = testing.lm_params(f'text:{folder}/part*.txt', file_buffer_size=8)
  before = params.ToText()
  found = [_texts(params, hosts, host) for host in range(hosts)]
  assert sum(map(len, found)) == FILES * LINES
  assert len(set.union(*found)) == FILES * LINES
  assert params.ToText() == before
  assert f'host 0 of {hosts} reads {-(-FILES // hosts)} of 5 files' in log()


def test_too_few_files_are_told(folder, log):
  params = testing.lm_params(f'text:{folder}/part0.txt', file_buffer_size=8)
  found = [_texts(params, 2, host) for host in range(2)]
  assert all(len(texts) == LINES for texts in found)
  assert 'each of 2 hosts reads all 1 files' in log()


def _split(pattern, host: int, hosts: int = 2, **fields):
  params = testing.lm_params(pattern, **fields)
  lingvo_input_hosts.split_files('the input', params, hosts, host)
  return params.file_pattern


def test_patterns_of_every_kind(folder):
  parts = [f'{folder}/part{i}.txt' for i in range(FILES)]
  listed = f'text:{parts[0]},{parts[1]},{parts[2]}'
  assert _split(listed, 1) == f'text:{parts[1]}'
  # Several patterns in one reader.
  joined = [f'text:{folder}/part[01].txt', f'{folder}/part[23].txt']
  assert _split(joined, 0) == [f'text:{parts[0]},{parts[2]}']
  # A reader of each pattern; what else belongs to a pattern stays.
  mixed = [
    (f'text:{folder}/part[01].txt', 0.25),
    (f'text:{folder}/part[234].txt', 0.75),
  ]
  assert _split(mixed, 1) == [
    (f'text:{parts[1]}', 0.25),
    (f'text:{parts[3]}', 0.75),
  ]
  # One of them has too few files.
  assert _split(mixed, 1, hosts=3) == mixed


def test_what_reads_no_files_stays(log):
  assert _split('iota:10', 1) == 'iota:10'
  assert 'files' not in log()


def test_a_generator_may_see_to_it_itself(folder, log):
  params = testing.lm_params(f'text:{folder}/part*.txt')
  adaptor = lingvo_input.LingvoInputAdaptor(
    input=params, is_training=True, num_infeed_hosts=2, split_files=False
  )
  adaptor.get_next()
  adaptor.close()
  assert 'reads 3 of 5' not in log()
