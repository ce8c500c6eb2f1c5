"""The schedule of pipelines."""

import doctest

import numpy as np
import pytest

from pax_compat.layers.pipelines import pipeline_schedule
from pax_compat.layers.pipelines.pipeline_schedule import Schedule


def test_examples():
  found = doctest.testmod(pipeline_schedule)
  assert found.attempted and not found.failed


@pytest.mark.parametrize(
  'stages,microbatches,repeats', [(3, 5, 1), (4, 2, 1), (3, 3, 2), (1, 2, 1)]
)
def test_each_stage_runs_each_step_after_the_stage_before(
  stages, microbatches, repeats
):
  schedule = Schedule(stages, microbatches, repeats)
  done = {}
  for t in range(schedule.iterations):
    for s, (microbatch, repeat, is_valid) in enumerate(
      np.stack(schedule.at(t, np.arange(stages)), axis=1)
    ):
      if is_valid:
        assert (microbatch, repeat, s) not in done
        done[microbatch, repeat, s] = t
  assert len(done) == stages * microbatches * repeats
  for (microbatch, repeat, s), t in done.items():
    before = (
      (microbatch, repeat, s - 1) if s else (microbatch, repeat - 1, stages - 1)
    )
    if before[1] >= 0:
      assert done[before] < t


def test_bubbles_are_in_range():
  schedule = Schedule(stages=3, microbatches=2)
  microbatch, repeat, is_valid = schedule.at(0, np.arange(3))
  assert list(is_valid) == [True, False, False]
  assert list(microbatch) == [0, 0, 0] and list(repeat) == [0, 0, 0]
