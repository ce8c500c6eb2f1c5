"""Tests of prefetching."""

import itertools
import json
import threading
import traceback
import types

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.nested_map import NestedMap
from pax_compat.processes import watchdog
from pax_compat.trainer.feeding import pipeline, prefetching
from tests import resources
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer.feeding import prefetcher_leaks


def _numbers(stop=None):
  """Returns a `get_next` of batches with 0, 1, ..., and the list of these."""
  given = []

  def get_next():
    if len(given) == stop:
      raise StopIteration
    given.append(len(given))
    return NestedMap(x=np.full([2], given[-1]))

  return get_next, given


def _prefetcher(get_next, put=lambda batch: batch, **options):
  stages = [pipeline.read(get_next), pipeline.put_on_devices(put)]
  return prefetching.Prefetcher(pipeline.Pipeline(stages), **options)


def _values(prefetcher):
  return [int(batch.arrays.x[0]) for batch in prefetcher]


def test_batches_come_in_order_until_the_input_ends():
  get_next, _ = _numbers(stop=20)
  with _prefetcher(get_next) as prefetcher:
    assert _values(prefetcher) == list(range(20))


def test_no_more_batches_are_read_than_allowed():
  get_next, given = _numbers()
  with _prefetcher(get_next, max_batches=5) as prefetcher:
    assert _values(prefetcher) == [0, 1, 2, 3, 4]
  assert len(given) == 5


def test_batches_are_sent_to_the_devices():
  get_next, _ = _numbers(stop=1)
  with _prefetcher(
    get_next, lambda batch: batch.transform(lambda x: x + 7)
  ) as f:
    assert _values(f) == [7]


def test_it_reads_ahead_and_no_further():
  get_next, given = _numbers()
  filled = threading.Event()

  def put(batch):
    if len(given) == 4:  # two wait, one was taken, this one waits for room
      filled.set()
    return batch

  with _prefetcher(get_next, put, ahead=2) as prefetcher:
    iterator = iter(prefetcher)
    next(iterator)
    assert filled.wait(60)
    assert len(given) == 4


@pytest.mark.parametrize('where', ['get_next', 'put'])
def test_errors_reach_the_iterating_thread_with_their_traceback(where):
  get_next, given = _numbers()

  def read():
    if where == 'get_next' and len(given) == 3:
      prefetcher_leaks.read_a_broken_file()
    return get_next()

  def put(batch):
    if where == 'put' and batch.x[0] == 3:
      prefetcher_leaks.read_a_broken_file()
    return batch

  seen = []
  with _prefetcher(read, put) as prefetcher:
    with pytest.raises(OSError, match='broken file') as e:
      for batch in prefetcher:
        seen.append(int(batch.arrays.x[0]))
  assert seen == [0, 1, 2]
  names = [frame.name for frame in traceback.extract_tb(e.value.__traceback__)]
  assert 'read_a_broken_file' in names


def _threads():
  return [t for t in threading.enumerate() if t.name == 'prefetcher']


@pytest.mark.parametrize('taken', [0, 1, 5])
def test_close_leaves_no_thread_though_batches_wait(taken):
  get_next, given = _numbers()
  full = threading.Event()

  def put(batch):
    if len(given) >= taken + 3:
      full.set()
    return batch

  prefetcher = _prefetcher(get_next, put, ahead=2)
  iterator = iter(prefetcher)
  for _ in range(taken):
    next(iterator)
  assert full.wait(60)
  assert _threads()
  prefetcher.close()
  assert not _threads()
  prefetcher.close()


def test_an_input_that_does_not_return_is_logged(monkeypatch):
  monkeypatch.setattr(prefetching, '_SECONDS_TO_COMPLAINT', 0.1)
  released, logged = threading.Event(), []

  def warning(text, *args):
    logged.append(text % args)
    released.set()

  monkeypatch.setattr(prefetching.logging, 'warning', warning)

  def get_next():
    released.wait(60)
    raise StopIteration

  prefetcher = _prefetcher(get_next)
  prefetcher.close()
  assert not _threads()
  [line] = logged
  assert line.startswith('waiting for the input to return its current batch')


def test_an_input_that_never_returns_is_abandoned(monkeypatch, caplog):
  monkeypatch.setattr(prefetching, '_SECONDS_TO_LEAVE', 0.1)
  released = threading.Event()
  before = _threads()
  prefetcher = _prefetcher(lambda: released.wait() and {})
  [thread] = set(_threads()) - set(before)
  prefetcher.close()
  assert thread.is_alive()
  assert 'its thread is abandoned' in caplog.text
  released.set()
  thread.join(60)
  assert not thread.is_alive()


def test_an_input_that_is_broken_is_not_waited_for(monkeypatch):
  monkeypatch.setattr(prefetching, '_SECONDS_TO_A_SIGNAL', 0.05)
  monkeypatch.setattr(prefetching, '_SECONDS_TO_COMPLAINT', 0.2)
  released, broken = threading.Event(), []

  def check():
    if broken:
      raise errors.UserError(broken[0])

  with (
    pytest.raises(errors.UserError, match='record 5'),
    _prefetcher(lambda: released.wait() and {}, check=check) as prefetcher,
  ):
    threading.Timer(0.2, broken.append, ['record 5 is damaged']).start()
    next(iter(prefetcher))
  [thread] = _threads()
  released.set()
  thread.join(60)


def read_from_a_file(released):
  released.wait()


def test_an_input_that_hangs_is_named_and_given_up(monkeypatch, caplog):
  monkeypatch.setattr(prefetching, '_SECONDS_TO_A_SIGNAL', 0.02)
  monkeypatch.setattr(prefetching, '_SECONDS_TO_REPORT', 0.1)
  monkeypatch.setattr(prefetching, '_SECONDS_TO_COMPLAINT', 0.1)
  released = threading.Event()
  with (
    pytest.raises(errors.UserError) as e,
    prefetching.patience(0.7),
    _prefetcher(lambda: read_from_a_file(released)) as prefetcher,
  ):
    next(iter(prefetcher))
  released.set()
  waits = 'waiting for batch 1 of the input, for 0 seconds so far; its thread'
  # After 0.1, 0.2, 0.4 seconds.
  assert 1 <= caplog.text.count(waits) <= 3
  for text in (caplog.text, str(e.value)):
    assert 'in read_from_a_file: released.wait()' in text
  assert 'see --input_timeout_minutes' in str(e.value)


def test_waiting_for_a_batch_is_not_a_hang(monkeypatch):
  """The limits of an input are others than those of a step."""
  monkeypatch.setattr(prefetching, '_SECONDS_TO_A_SIGNAL', 0.01)
  monkeypatch.setattr(watchdog, '_SECONDS_TO_LOOK', 0.01)
  monkeypatch.setattr(watchdog, '_LONGEST_LOOK', 0.05)
  released, ended = threading.Event(), []
  threading.Timer(1.0, released.set).start()
  with watchdog.watching(0.2, input_seconds=None) as watch:
    monkeypatch.setattr(watch, '_end', ended.append)
    prefetcher = _prefetcher(lambda: released.wait() and {'x': np.zeros(2)})
    watch.alive('the step begins')
    next(iter(prefetcher))
    released.clear()
    threading.Timer(1.0, released.set).start()
    watch.alive('the step ends')
    prefetcher.close()
  assert not ended


def test_an_input_that_waits_for_others_is_interrupted(monkeypatch):
  left = threading.Event()

  def get_next():
    left.wait(60)
    raise RuntimeError('left')

  prefetcher = _prefetcher(get_next, interrupt=left.set)
  prefetcher.close()
  assert left.is_set() and not _threads()
  # One that ends by itself is not.
  monkeypatch.setattr(prefetching, '_SECONDS_TO_INTERRUPT', 60)
  left.clear()
  numbers, _ = _numbers(stop=1)
  with _prefetcher(numbers, interrupt=left.set) as prefetcher:
    assert len([*prefetcher]) == 1
  assert not left.is_set()


def test_a_block_that_raises_closes_too():
  get_next, _ = _numbers()
  with pytest.raises(KeyError), _prefetcher(get_next):
    raise KeyError
  assert not _threads()


@pytest.mark.parametrize('end', ['input', 'error', 'close'])
def test_an_iteration_that_has_ended_ends_again_at_once(end):
  get_next, _ = _numbers(stop=1)
  prefetcher = _prefetcher(
    prefetcher_leaks.read_a_broken_file if end == 'error' else get_next
  )
  if end == 'close':
    prefetcher.close()
  elif end == 'error':
    pytest.raises(OSError, _values, prefetcher)
  else:
    assert _values(prefetcher) == [0]
  again = []
  # In a separate thread, so that waiting forever is a failure.
  thread = threading.Thread(
    target=lambda: again.append(_values(prefetcher)), daemon=True
  )
  thread.start()
  thread.join(60)
  assert again == [[]]


def test_the_time_of_waiting_is_measured(monkeypatch):
  clock = itertools.chain([10.0, 13.5, 20.0, 20.25], itertools.repeat(21.0))
  monkeypatch.setattr(
    prefetching, 'time', types.SimpleNamespace(monotonic=lambda: next(clock))
  )
  get_next, _ = _numbers()
  with _prefetcher(get_next) as prefetcher:
    iterator = iter(prefetcher)
    waits = [next(iterator).wait_seconds for _ in range(2)]
  assert waits == [3.5, 0.25]


def test_a_peek_takes_nothing_away():
  get_next, _ = _numbers(stop=3)
  with _prefetcher(get_next) as prefetcher:
    assert int(prefetcher.peek().arrays.x[0]) == 0
    assert int(prefetcher.peek().arrays.x[0]) == 0
    seen = []
    for batch in prefetcher:
      seen.append(int(batch.arrays.x[0]))
      ahead = prefetcher.peek()
      seen.append(ahead and int(ahead.arrays.x[0]))
    assert seen == [0, 1, 1, 2, 2, None]
    assert prefetcher.peek() is None


def test_a_peek_waits_instead_of_the_step():
  released = threading.Event()

  def get_next():
    released.wait(10)
    return NestedMap(x=np.zeros([1]))

  with _prefetcher(get_next) as prefetcher:
    threading.Timer(0.2, released.set).start()
    prefetcher.peek()
    assert next(iter(prefetcher)).wait_seconds == 0


def test_a_peek_meets_the_error_of_the_input():
  def get_next():
    raise ArithmeticError('no')

  with _prefetcher(get_next) as prefetcher:
    with pytest.raises(ArithmeticError, match='no'):
      prefetcher.peek()


@pytest.mark.slow
def test_a_thousand_prefetchers_leave_nothing_behind():
  done = trainer_runs.forked(
    '-m', 'tests.pax_compat.trainer.feeding.prefetcher_leaks'
  )
  assert done.returncode == 0, done.stderr
  more = resources.Held(**json.loads(done.stdout.splitlines()[-1]))
  assert more.python_threads <= 0
  assert more.threads <= 2  # JAX's pools may still grow.
  assert more.files <= 0
  # 100 kB of each cycle would make 100 MB.
  assert more.resident < 20e6
  assert more.allocated < 20e6
