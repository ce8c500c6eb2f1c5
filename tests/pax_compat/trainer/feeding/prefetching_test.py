"""Tests of reading ahead."""

import itertools
import json
import threading
import traceback
import types

import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import prefetching
from tests import resources
from tests.pax_compat import trainer_runs
from tests.pax_compat.trainer.feeding import feeder_leaks


def _numbers(stop=None):
  """Returns a `get_next` of batches with 0, 1, ..., and what it gave out."""
  given = []

  def get_next():
    if len(given) == stop:
      raise StopIteration
    given.append(len(given))
    return NestedMap(x=np.full([2], given[-1]))

  return get_next, given


def _values(feeder):
  return [int(fed.arrays.x[0]) for fed in feeder]


def test_batches_come_in_order_until_the_input_ends():
  get_next, _ = _numbers(stop=20)
  with prefetching.Feeder(get_next, lambda b: b) as feeder:
    assert _values(feeder) == list(range(20))


def test_no_more_batches_are_read_than_allowed():
  get_next, given = _numbers()
  with prefetching.Feeder(get_next, lambda b: b, max_batches=5) as feeder:
    assert _values(feeder) == [0, 1, 2, 3, 4]
  assert len(given) == 5


def test_batches_are_sent_to_the_devices():
  get_next, _ = _numbers(stop=1)
  with prefetching.Feeder(
    get_next, lambda b: b.transform(lambda x: x + 7)
  ) as f:
    assert _values(f) == [7]


def test_each_batch_has_the_state_after_it():
  get_next, given = _numbers(stop=8)

  def get_state():
    return bytes([len(given)])

  with prefetching.Feeder(get_next, lambda b: b, get_state=get_state) as feeder:
    fed = list(feeder)
  assert [list(f.input_state) for f in fed] == [[n] for n in range(1, 9)]


def test_it_reads_ahead_and_no_further():
  get_next, given = _numbers()
  filled = threading.Event()

  def put(batch):
    if len(given) == 4:  # two wait, one was taken, this one waits for room
      filled.set()
    return batch

  with prefetching.Feeder(get_next, put, ahead=2) as feeder:
    iterator = iter(feeder)
    next(iterator)
    assert filled.wait(60)
    assert len(given) == 4


@pytest.mark.parametrize('where', ['get_next', 'put'])
def test_errors_reach_the_iterating_thread_with_their_traceback(where):
  get_next, given = _numbers()

  def read():
    if where == 'get_next' and len(given) == 3:
      feeder_leaks.read_a_broken_file()
    return get_next()

  def put(batch):
    if where == 'put' and batch.x[0] == 3:
      feeder_leaks.read_a_broken_file()
    return batch

  seen = []
  with prefetching.Feeder(read, put) as feeder:
    with pytest.raises(OSError, match='broken file') as e:
      for fed in feeder:
        seen.append(int(fed.arrays.x[0]))
  assert seen == [0, 1, 2]
  names = [frame.name for frame in traceback.extract_tb(e.value.__traceback__)]
  assert 'read_a_broken_file' in names


def _feeders():
  return [t for t in threading.enumerate() if t.name == 'feeder']


@pytest.mark.parametrize('taken', [0, 1, 5])
def test_close_leaves_no_thread_though_batches_wait(taken):
  get_next, given = _numbers()
  full = threading.Event()

  def put(batch):
    if len(given) >= taken + 3:
      full.set()
    return batch

  feeder = prefetching.Feeder(get_next, put, ahead=2)
  iterator = iter(feeder)
  for _ in range(taken):
    next(iterator)
  assert full.wait(60)
  assert _feeders()
  feeder.close()
  assert not _feeders()
  feeder.close()


def test_an_input_that_does_not_return_is_told_of(monkeypatch):
  monkeypatch.setattr(prefetching, '_SECONDS_TO_COMPLAINT', 0.1)
  released, told = threading.Event(), []

  def tell(text, *args):
    told.append(text % args)
    released.set()

  monkeypatch.setattr(prefetching.logging, 'warning', tell)

  def get_next():
    released.wait(60)
    raise StopIteration

  feeder = prefetching.Feeder(get_next, lambda b: b)
  feeder.close()
  assert not _feeders()
  [line] = told
  assert line.startswith('cannot end before the input has given')


def test_an_input_that_never_returns_is_left_behind(monkeypatch, caplog):
  monkeypatch.setattr(prefetching, '_SECONDS_TO_LEAVE', 0.1)
  released = threading.Event()
  before = _feeders()
  feeder = prefetching.Feeder(lambda: released.wait() and {}, lambda b: b)
  [thread] = set(_feeders()) - set(before)
  feeder.close()
  assert thread.is_alive()
  assert 'its thread is left behind' in caplog.text
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
    prefetching.Feeder(
      lambda: released.wait() and {}, lambda b: b, check=check
    ) as feeder,
  ):
    threading.Timer(0.2, broken.append, ['record 5 is damaged']).start()
    next(iter(feeder))
  [thread] = _feeders()
  released.set()
  thread.join(60)


def test_an_input_that_waits_for_others_is_interrupted(monkeypatch):
  left = threading.Event()

  def get_next():
    left.wait(60)
    raise RuntimeError('left')

  feeder = prefetching.Feeder(get_next, lambda b: b, interrupt=left.set)
  feeder.close()
  assert left.is_set() and not _feeders()
  # One that ends by itself is not.
  monkeypatch.setattr(prefetching, '_SECONDS_TO_INTERRUPT', 60)
  left.clear()
  numbers, _ = _numbers(stop=1)
  with prefetching.Feeder(numbers, lambda b: b, interrupt=left.set) as feeder:
    assert len([*feeder]) == 1
  assert not left.is_set()


def test_a_block_that_raises_closes_too():
  get_next, _ = _numbers()
  with pytest.raises(KeyError), prefetching.Feeder(get_next, lambda b: b):
    raise KeyError
  assert not _feeders()


@pytest.mark.parametrize('end', ['input', 'error', 'close'])
def test_what_has_ended_ends_again_at_once(end):
  get_next, _ = _numbers(stop=1)
  feeder = prefetching.Feeder(
    feeder_leaks.read_a_broken_file if end == 'error' else get_next, lambda b: b
  )
  if end == 'close':
    feeder.close()
  elif end == 'error':
    pytest.raises(OSError, _values, feeder)
  else:
    assert _values(feeder) == [0]
  again = []
  # A thread of its own, so that waiting for ever is a failure.
  thread = threading.Thread(
    target=lambda: again.append(_values(feeder)), daemon=True
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
  with prefetching.Feeder(get_next, lambda b: b) as feeder:
    iterator = iter(feeder)
    waits = [next(iterator).wait_seconds for _ in range(2)]
  assert waits == [3.5, 0.25]


def test_facts_about_a_batch():
  batch = NestedMap(
    ids=np.zeros([8, 4]),
    src=NestedMap(x=np.zeros([8])),
    paddings=np.array([[0, 0, 1], [0, 1, 1]]),
  )
  assert prefetching.shapes_of(batch) == 'ids[8,4] paddings[2,3] src.x[8]'
  assert prefetching.tokens_in(batch) == 3
  batch.weights = np.array([[1, 0.5], [0, 0]])
  assert prefetching.tokens_in(batch) == 1.5
  assert prefetching.tokens_in(NestedMap(tag=batch)) == 1.5
  assert prefetching.tokens_in(NestedMap(ids=np.zeros(3))) == 0


def test_a_peek_takes_nothing_away():
  get_next, _ = _numbers(stop=3)
  with prefetching.Feeder(get_next, lambda b: b) as feeder:
    assert int(feeder.peek().arrays.x[0]) == 0
    assert int(feeder.peek().arrays.x[0]) == 0
    seen = []
    for fed in feeder:
      seen.append(int(fed.arrays.x[0]))
      ahead = feeder.peek()
      seen.append(ahead and int(ahead.arrays.x[0]))
    assert seen == [0, 1, 1, 2, 2, None]
    assert feeder.peek() is None


def test_who_peeks_waits_instead_of_the_step():
  released = threading.Event()

  def get_next():
    released.wait(10)
    return NestedMap(x=np.zeros([1]))

  with prefetching.Feeder(get_next, lambda b: b) as feeder:
    threading.Timer(0.2, released.set).start()
    feeder.peek()
    assert next(iter(feeder)).wait_seconds == 0


def test_a_peek_meets_the_error_of_the_input():
  def get_next():
    raise ArithmeticError('no')

  with prefetching.Feeder(get_next, lambda b: b) as feeder:
    with pytest.raises(ArithmeticError, match='no'):
      feeder.peek()


def test_texts_stay_on_the_host():
  texts = np.array(['a', 'bc'])

  def get_next():
    return NestedMap(x=np.zeros([2]), of=NestedMap(text=texts))

  data = base_input.BaseInput()
  with prefetching.Feeder(
    get_next, lambda b: b, is_host_field=data.is_host_field
  ) as feeder:
    fed = next(iter(feeder))
  assert list(fed.arrays) == ['x'] and fed.shapes == 'x[2]'
  assert fed.host == {'of.text': texts}


@pytest.mark.slow
def test_a_thousand_feeders_leave_nothing_behind():
  done = trainer_runs.forked(
    '-m', 'tests.pax_compat.trainer.feeding.feeder_leaks'
  )
  assert done.returncode == 0, done.stderr
  more = resources.Held(**json.loads(done.stdout.splitlines()[-1]))
  assert more.python_threads <= 0
  assert more.threads <= 2  # JAX's pools may still grow.
  assert more.files <= 0
  # 100 kB of each cycle would make 100 MB.
  assert more.resident < 20e6
  assert more.allocated < 20e6
