"""Tests of arrays staged on disk."""

import time

import numpy as np

from adaptors.lingvo_checkpoint.staging import Staging


def _never():
  raise AssertionError('the array exists already')


def test_existing_arrays_are_reused(tmp_path):
  first = Staging(tmp_path / 'kept', 'a')
  array = np.arange(6.0).reshape(2, 3)
  np.testing.assert_array_equal(first.get('x', lambda: array), array)
  again = Staging(tmp_path / 'kept', 'a')
  np.testing.assert_array_equal(again.get('x', _never), array)
  other = Staging(tmp_path / 'kept', 'of another source')
  np.testing.assert_array_equal(other.get('x', lambda: 2 * array), 2 * array)
  other.remove()
  assert not (tmp_path / 'kept').exists()


def test_arrays_do_not_stay_in_memory(tmp_path):
  staging = Staging(tmp_path / 'kept', 'a')
  array = np.random.default_rng(0).random(2**22)
  kept = staging.get('x', lambda: array)
  np.testing.assert_array_equal(kept, array)
  deadline = time.monotonic() + 20
  while _resident(kept) < kept.nbytes and time.monotonic() < deadline:
    kept.sum()  # The kernel may have reclaimed pages.
  assert _resident(kept) >= kept.nbytes
  with staging.sparing():
    deadline = time.monotonic() + 20
    while _resident(kept) and time.monotonic() < deadline:
      time.sleep(0.05)
    assert not _resident(kept)
    # And are the same as before.
    np.testing.assert_array_equal(kept, array)


def _resident(kept) -> int:
  """Returns how many bytes of an array's file are in this process's memory."""
  with open('/proc/self/smaps', encoding='utf-8') as file:
    lines = iter(file.readlines())
  for line in lines:
    if line.rstrip().endswith(str(kept.filename)):
      found = next(x for x in lines if x.startswith('Rss:'))
      return 1024 * int(found.split()[1])
  raise AssertionError(f'{kept.filename} is not mapped')
