"""Tests of `pax_compat.runs.garbage`."""

import gc

import pytest

from pax_compat.runs import garbage


@pytest.mark.parametrize('enabled', [True, False])
def test_the_collector_is_as_before(enabled):
  (gc.enable if enabled else gc.disable)()
  try:
    with pytest.raises(KeyError), garbage.uncollected():
      assert not gc.isenabled()
      raise KeyError
    assert gc.isenabled() == enabled
  finally:
    gc.enable()


def test_what_stays_is_left_out_of_collections():
  before = gc.get_freeze_count()
  with garbage.uncollected(stays=True):
    kept = [[] for _ in range(100)]
  assert gc.get_freeze_count() >= before + len(kept)
