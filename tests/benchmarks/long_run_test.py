"""Tests of what `benchmarks.long_run` measures; the run itself takes long."""

import os

import pytest

from benchmarks import long_run
from pax_compat.experiments import resolved


def test_a_look_at_this_process(tmp_path):
  before = long_run.look(os.getpid(), 3)
  with open(tmp_path / 'file', 'w'), open(tmp_path / 'other', 'w'):
    after = long_run.look(os.getpid(), 4)
  assert (before.step, after.step) == (3, 4)
  assert after.files == before.files + 2
  assert before.megabytes > 10 and before.threads >= 1
  assert long_run.look(2**22 + 1, 5) is None


def test_growth_compares_the_last_fifth_with_the_second():
  looks = [
    long_run.Look(step, 100.0 + (900 if step < 2 else step), 5, 7)
    for step in range(10)
  ]
  assert long_run.growth(looks) == pytest.approx((6, 6, 0, 0))


def test_the_experiment_resolves():
  resolved.resolve(long_run.Tiny(), name='tiny').task.Instantiate()
