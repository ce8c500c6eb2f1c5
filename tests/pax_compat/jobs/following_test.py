"""Tests of following a run, whose checkpoints come and go in a list."""

import pytest

from pax_compat.jobs import following
from pax_compat.trainer import stopping


class Run:
  """A run in the place of a `Watch`; `turns` happen while a job waits.

  Attributes:
    directory: its name.
    saved: digests by step.
    ended: whether its newest checkpoint is the last one.
    fails: how often in a row it cannot be read.
  """

  directory = 'here'

  def __init__(self, *turns, **saved):
    self.saved = {int(k[1:]): digest for k, digest in saved.items()}
    self.ended = False
    self.fails = 0
    self._turns = list(turns)
    self.slept = []

  def steps(self):
    if self.fails:
      self.fails -= 1
      raise OSError('stale file handle')
    return sorted(self.saved)

  def exists(self, step):
    return step in self.saved

  def digest(self, step):
    return self.saved.get(step, '')

  def ends_training(self, step, *, last_step):
    assert step == max(self.saved) and last_step == 12
    return self.ended

  def sleep(self, seconds):
    self.slept.append(seconds)
    if sum(self.slept) >= 0.5 and self._turns:
      self.slept = []
      self._turns.pop(0)(self)


def _follow(run, done=None, stop=stopping.NEVER):
  """Returns what was taken, the lines, and the follower."""
  done, taken, printed = {} if done is None else done, [], []
  follower = following.Follower(
    run,
    is_done=lambda step, digest: done.get(step) == digest,
    last_step=12,
    stop=stop,
    print_line=printed.append,
    sleep=run.sleep,
  )
  for step in follower:
    taken.append(step)
    done[step] = run.digest(step)
  return taken, printed, follower


def test_each_checkpoint_once_until_training_ends():
  def saves(step, digest='a'):
    return lambda run: run.saved.update({step: digest})

  def ends(run):
    run.saved.update({12: 'a'})
    run.ended = True

  run = Run(lambda run: None, saves(5), saves(10), ends)
  taken, printed, _ = _follow(run)
  assert taken == [5, 10, 12]
  assert printed == ['waiting for the next checkpoint in here']

  # What was done before is not taken again; what came meanwhile is.
  run = Run(s5='a', s10='a', s12='a')
  run.ended = True
  assert _follow(run, done={5: 'a', 12: 'a'})[0] == [10]
  assert _follow(run, done={5: 'a', 10: 'a', 12: 'a'})[0] == []
  # Another checkpoint of a step is new.
  assert _follow(run, done={5: 'a', 10: 'b', 12: 'a'})[0] == [10]


def test_checkpoints_that_cannot_be_read_are_left_out():
  run = Run(s5='a', s10='a', s12='a')
  run.ended = True
  follower = following.Follower(
    run,
    is_done=lambda step, digest: False,
    last_step=12,
    stop=stopping.NEVER,
    print_line=(printed := []).append,
    sleep=run.sleep,
  )
  taken = []
  for step in follower:
    taken.append(step)
    if step == 5:
      del run.saved[5]
    follower.give_up(step, 'a', 'a file is missing')
  assert taken == [5, 10, 12]
  assert printed == [
    'the checkpoint of step 5 was deleted before it was read',
    'the checkpoint of step 10 cannot be read: a file is missing',
    'the checkpoint of step 12 cannot be read: a file is missing',
  ]
  assert follower.counts.deleted == [5]
  assert list(follower.counts.damaged) == [10, 12]


def test_a_file_system_may_recover(caplog):
  run = Run(s12='a')
  run.ended, run.fails = True, 3
  assert _follow(run)[0] == [12]
  assert caplog.text.count('stale file handle') == 3
  run.fails = 100
  with pytest.raises(OSError, match='stale'):
    _follow(run)


def test_a_job_that_waits_looks_less_and_less_often_and_stops():
  class Stop(stopping.Stop):
    def is_asked(self):
      return sum(run.slept) > 60

  run = Run(s5='a')
  with pytest.raises(stopping.Interrupted):
    _follow(run, done={5: 'a'}, stop=Stop())
  assert max(run.slept) <= 0.5  # It looks for a signal in between.
