"""Tests of `benchmarks.input_hosts` with a single host; no times."""

import pytest

from benchmarks import input_hosts
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


def test_a_single_host(tmp_path):
  input_hosts.write_pairs(tmp_path, files=1, pairs=500)
  counts = input_hosts.read(tmp_path, batches=20, hosts=1, host=0)
  assert 0 < counts['real'] < counts['all'] < counts['one_shape']
  result = input_hosts.of_hosts([counts, counts], batches=20)
  assert result['real'] == counts['real'] / counts['all']
  assert result['milliseconds'] == pytest.approx(counts['seconds'] * 1e3 / 20)
  assert result['weightless'] == 0
  assert len(input_hosts.text_of({'2': result}).splitlines()) == 2
