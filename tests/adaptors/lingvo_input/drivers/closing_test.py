"""Closing never waits forever, and the garbage collector does not wait."""

import contextlib
import gc
import threading

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import input_adaptor
from adaptors.lingvo_input.drivers import closing
from tests import resources
from tests.adaptors.lingvo_input import generators as testing


def test_what_is_closed_next_does_not_wait_behind_what_stands_still(
  monkeypatch, caplog
):
  monkeypatch.setattr(closing, '_SECONDS_TO_CLOSE', 0.1)
  released, closed = threading.Event(), threading.Event()
  closing.in_time('the first', released.wait)
  assert 'the first could not be closed within' in caplog.text
  closing.soon(closed.set)
  assert closed.wait(60)
  released.set()


def test_an_error_does_not_keep_the_next_from_being_closed(caplog):
  def fail():
    raise ValueError('no such session')

  closed = threading.Event()
  closing.in_time('the first', fail)
  closing.in_time('the second', closed.set)
  assert closed.is_set()
  assert 'no such session' in caplog.text


def _locking_params(pattern: str, lock):
  """Returns Params of a generator that needs `lock` for each record."""
  tf = lingvo_runtime.module('tensorflow')
  generic = lingvo_runtime.module('lingvo.core.generic_input')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  nested = lingvo_runtime.module('lingvo.core.py_utils').NestedMap

  def length(line):
    with lock:
      return len(line)

  def read(line):
    found = tf.numpy_function(length, [line], tf.int64)
    return nested(x=tf.reshape(found, [])), tf.constant(1)

  class Locking(generators.BaseSequenceInputGenerator):
    def _InputBatch(self):  # noqa: N802
      batch, _ = generic.GenericInput(
        file_pattern=self.params.file_pattern,
        processor=read,
        **self.CommonInputOpArgs(),
      )
      return batch

  return Locking.Params().Set(
    file_pattern=pattern,
    file_random_seed=0,
    file_parallelism=1,
    file_buffer_size=1,
    bucket_upper_bound=[1],
    bucket_batch_limit=[2],
    repeat_count=1,
  )


def _adaptor(params):
  return input_adaptor.LingvoInputAdaptor(input=params, is_training=True)


@pytest.mark.parametrize('who', ['user', 'garbage collector'])
def test_a_reader_that_waits_for_a_lock_of_the_closing_thread(
  monkeypatch, caplog, tmp_path, who
):
  # As a processor that writes to a log would, closed during a line of the log.
  lock = threading.Lock()
  pattern = testing.write_lines(tmp_path / 'a', testing.unique_lines(500))
  params = _locking_params(pattern, lock)
  with contextlib.closing(_adaptor(params)) as first:
    first.get_next()  # TensorFlow starts pools of its own.
  data = _adaptor(params)
  before = resources.threads()
  monkeypatch.setattr(closing, '_SECONDS_TO_CLOSE', 0.3)
  assert data.get_next().x.tolist() == [6, 6]
  started = resources.threads() - before
  assert started
  with lock:
    if who == 'user':
      data.close()
    del data
    gc.collect()
  assert ('could not be closed' in caplog.text) == (who == 'user')
  # What was left to itself comes to its end where it can.
  resources.wait_for_end(started)
