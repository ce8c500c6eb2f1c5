"""Tests of `benchmarks.input_hosts`: what a host alone reads; no times."""

import pytest

from benchmarks import input_hosts
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


def test_a_host_alone(tmp_path):
  input_hosts.write_pairs(tmp_path, files=1, pairs=500)
  told = input_hosts.read(tmp_path, batches=20, hosts=1, host=0)
  assert 0 < told['real'] < told['fed'] < told['one_shape']
  result = input_hosts.of_hosts([told, told], batches=20)
  assert result['real'] == told['real'] / told['fed']
  assert result['milliseconds'] == pytest.approx(told['seconds'] * 1e3 / 20)
  assert result['weightless'] == 0
  assert len(input_hosts.text_of({'2': result}).splitlines()) == 2
