"""Tests of the counting of steps, without a run."""

import threading
import weakref

import numpy as np
import pytest

from pax_compat.metrics import progress as progress_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import actions
from pax_compat.trainer.feeding import pipeline
from pax_compat.trainer.reporting import step_counter


class Progress:
  """Records the steps that were counted."""

  def __init__(self):
    self.steps = []

  def leave_out(self, seconds):
    pass

  def now(self):
    return 0.0

  def count_step(self, ended, **fields):
    del ended
    self.steps.append(fields)


def _context(step, **fields):
  batch = pipeline.DeviceBatch(
    arrays=NestedMap(), tokens=step, wait_seconds=0.5
  )
  return actions.StepContext(
    step=step,
    state='donated',
    batch=batch,
    **dict(is_last_step=False, is_stopping=False) | fields,
  )


def _counter(report, *, asynchronous):
  progress = Progress()
  counter = step_counter.StepCounter(
    progress=progress,
    report=report,
    num_infeed_hosts=2,
    asynchronous=asynchronous,
  )
  return counter, progress


@pytest.mark.parametrize('asynchronous', [True, False])
def test_each_step_is_counted_and_then_reported(asynchronous):
  reported = []

  def report(context):
    assert context.state is None  # The next step takes it.
    reported.append((context.step, len(progress.steps)))

  counter, progress = _counter(report, asynchronous=asynchronous)
  with counter:
    counter(_context(1))
    counter(_context(2))
    counter.flush()
    assert reported == [(1, 1), (2, 2)]
    counter(_context(3, is_last_step=True))
    assert reported[2:] == [(3, 3)]  # The last step is reported at once.
  assert progress.steps == [
    dict(tokens=2 * step, input_wait=0.5, flops=0.0) for step in (1, 2, 3)
  ]


def test_a_step_is_counted_when_the_next_one_is_dispatched():
  reported = []
  counter, _ = _counter(
    lambda context: reported.append(context.step), asynchronous=False
  )
  with counter:
    for step in (1, 2, 3):
      counter(_context(step))
      assert reported == [*range(1, step)]


@pytest.mark.parametrize('asynchronous', [True, False])
def test_an_error_of_a_report_is_raised(asynchronous):
  def report(context):
    raise ArithmeticError('no')

  counter, _ = _counter(report, asynchronous=asynchronous)
  with counter:
    counter(_context(1))
    with pytest.raises(ArithmeticError, match='no'):
      counter.flush()


def test_the_end_of_a_block_ends_the_thread():
  counter, _ = _counter(lambda context: None, asynchronous=True)
  with counter:
    counter(_context(1))
    assert [t for t in threading.enumerate() if t.name.startswith('report')]
  assert not [t for t in threading.enumerate() if t.name.startswith('report')]


def test_a_report_that_hangs_takes_up_little_memory(monkeypatch):
  monkeypatch.setattr(step_counter, '_MAX_PENDING', 3)
  begun, ends, dispatched = threading.Event(), threading.Event(), []

  def report(unused_context):
    begun.set()
    assert ends.wait(60)

  def dispatch():
    for step in range(1, 11):
      context = _context(step)
      array = np.zeros(5)
      arrays.append(weakref.ref(array))
      context.batch.arrays.x = array
      del array
      counter(context)
      del context
      dispatched.append(step)

  arrays = []
  counter, _ = _counter(report, asynchronous=True)
  with counter:
    loop = threading.Thread(target=dispatch)
    loop.start()
    assert begun.wait(60)
    loop.join(0.5)
    assert dispatched == [1, 2, 3]
    assert not [array for array in arrays[:3] if array() is not None]
    ends.set()
    loop.join()
    counter.flush()
  assert dispatched == [*range(1, 11)]


def test_steps_that_end_during_a_report_have_their_rate():
  seconds = [0.0]
  begun, others_ended = threading.Event(), threading.Event()
  progress = progress_lib.Progress(9, clock=lambda: seconds[0])

  def report(context):
    if context.step == 1:
      progress.start()
      begun.set()
      assert others_ended.wait(60)

  with step_counter.StepCounter(
    progress=progress,
    report=report,
    num_infeed_hosts=1,
    asynchronous=True,
    max_inflight_steps=1,
  ) as counter:
    counter(_context(1))
    assert begun.wait(60)
    for step in range(2, 6):
      seconds[0] += 0.5
      counter(_context(step))
    others_ended.set()
    counter.flush()
  _, rates = progress.report()
  assert rates['steps_per_second'] == pytest.approx(2)
