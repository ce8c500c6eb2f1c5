"""Tests of what the time of a run is used for."""

import json

import pytest

from pax_compat.metrics import time_use


class Clock:
  """Seconds that pass when a test says so."""

  def __init__(self, at=0.0):
    self.at = at

  def __call__(self):
    return self.at

  def passes(self, seconds):
    self.at += seconds


def _started(clock, saved=None):
  """Returns the time use of a process, whose clock began at another time."""
  use = time_use.TimeUse(clock=lambda: clock() - 7.0, now=lambda: 1e9 + clock())
  if saved:
    use.go_on(saved)
  return use


def test_each_second_counts_once():
  clock = Clock()
  use = _started(clock)
  clock.passes(2)
  with use.of(time_use.TRAINING):
    clock.passes(10)
    with use.of(time_use.EVALUATION):
      clock.passes(3)
      with use.of(time_use.SAVING):
        clock.passes(1)
      clock.passes(3)
    with pytest.raises(KeyError), use.of(time_use.COMPILATION):
      clock.passes(4)
      raise KeyError
    clock.passes(20)
  assert use.to_save() == {
    'began': 1e9,
    'seconds': dict(
      training=30, evaluation=6, saving=1, compilation=4, start=2
    ),
  }
  assert sum(use.fractions().values()) == pytest.approx(1)
  assert use.fractions()['lost'] == 0


def test_steps_that_were_not_saved_are_lost():
  clock = Clock()
  use = _started(clock)
  clock.passes(5)
  with use.of(time_use.TRAINING):
    clock.passes(25)
    saved = json.loads(json.dumps(use.to_save()))
    clock.passes(30)  # Then it is killed, and 20 seconds later it continues.
  clock.passes(20)
  use = _started(clock, saved)
  clock.passes(5)
  with use.of(time_use.TRAINING):
    clock.passes(15)
  assert use.fractions() == pytest.approx(
    dict(
      training=0.4,
      evaluation=0,
      saving=0,
      compilation=0,
      start=0.1,
      lost=0.5,
    )
  )
  assert str(use) == (
    '1m40s since the first start: training 40%, start 10%, lost 50%'
  )
  assert use.metrics()['time_use/lost'] == pytest.approx(0.5)


def test_a_machine_whose_clock_is_behind():
  clock = Clock(1000.0)
  use = _started(clock)
  with use.of(time_use.TRAINING):
    clock.passes(90)
  saved = use.to_save()
  behind = Clock(900.0)
  use = _started(behind, saved)
  behind.passes(10)
  found = use.fractions()
  assert found['training'] == pytest.approx(0.9) and found['lost'] == 0


def test_the_first_moment():
  assert _started(Clock()).metrics() == {}


def test_a_kind_that_a_checkpoint_does_not_know():
  saved = {'began': 1e9, 'seconds': {'training': 4.0}}
  assert _started(Clock(8.0), saved).fractions() == {
    **dict(training=0.5, evaluation=0, saving=0, compilation=0, start=0),
    'lost': 0.5,
  }
