"""Inputs that are closed leave nothing behind."""

import gc
import time

import pytest

from adaptors.lingvo_input import input_adaptor
from tests import resources
from tests.adaptors.lingvo_input import generators as testing

_CYCLES = 20


@pytest.mark.parametrize('reader', ['records', 'records that end', 'tf.data'])
def test_closed_inputs_leave_nothing_behind(tmp_path, reader):
  lines = testing.unique_lines(100)
  pattern = testing.write_lines(tmp_path / 'lines.txt', lines)
  if reader == 'tf.data':
    params = testing.numbers(100, repeat=True, threads=2)
  else:
    count = 1 if reader == 'records that end' else -1
    params = testing.lm_params(pattern, repeat_count=count)

  def read_and_close():
    data = input_adaptor.LingvoInputAdaptor(input=params, is_training=True)
    for _ in range(2):
      data.get_next()
    data.close()

  for _ in range(5):  # The first ones start TensorFlow's own pools.
    read_and_close()
  before = resources.held()
  gc.disable()  # Threads end when an input is closed, not some time after.
  try:
    for _ in range(_CYCLES):
      read_and_close()
    _wait_for_threads_to_end(before.threads)
  finally:
    gc.enable()
  after = resources.held()
  assert after.python_threads == before.python_threads
  assert after.threads <= before.threads
  assert after.files <= before.files
  # A cycle leaves less than 30 kB, of objects and of native memory.
  assert after.allocated - before.allocated < 30_000 * _CYCLES
  assert after.blocks - before.blocks < 300 * _CYCLES


def _wait_for_threads_to_end(remaining: int):
  """Waits for the system to have done with threads that were joined."""
  deadline = time.monotonic() + 30
  while resources.threads() > remaining and time.monotonic() < deadline:
    time.sleep(0.01)
  assert resources.threads() <= remaining
