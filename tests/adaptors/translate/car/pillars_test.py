"""CenterPoint, translated, against Lingvo's, run for real."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors.bridge.families import center_point, pillars
from tests.adaptors.translate import task_parity, tiny_task


def _params(**fields):
  params = center_point.task_params().Set(**fields)
  params.eval.samples_per_summary = 8
  return params


def _check(params, steps, more=lambda seed: {}):
  batches = [center_point.batch(i) | more(i) for i in range(steps)]
  theirs = task_parity.check(params, batches, static_shapes=True)
  for path, value in theirs.last.items():
    assert np.any(value != theirs.first[path]), path


@pytest.mark.slow
def test_points_in_voxels_and_centers_and_laplace_loss():
  _check(_params(), 3)
