"""The order in which the stages of a pipeline work."""

import numpy as np
import pytest

from pax_compat.layers.pipelines.pipeline_schedule import Schedule


@pytest.mark.parametrize(
  'stages,microbatches,ways', [(3, 5, 1), (4, 2, 1), (3, 3, 2), (1, 2, 1)]
)
def test_each_stage_works_on_each_item_after_the_stage_before(
  stages, microbatches, ways
):
  schedule = Schedule(stages, microbatches, ways)
  done = {}
  for t in range(schedule.iterations):
    for s, (part, way, is_item) in enumerate(
      np.stack(schedule.at(t, np.arange(stages)), axis=1)
    ):
      if is_item:
        assert (part, way, s) not in done
        done[part, way, s] = t
  assert len(done) == stages * microbatches * ways
  for (part, way, s), t in done.items():
    before = (part, way, s - 1) if s else (part, way - 1, stages - 1)
    if before[1] >= 0:
      assert done[before] < t


def test_of_bubbles_nothing_is_out_of_range():
  schedule = Schedule(stages=3, microbatches=2)
  part, way, is_item = schedule.at(0, np.arange(3))
  assert list(is_item) == [True, False, False]
  assert list(part) == [0, 0, 0] and list(way) == [0, 0, 0]
