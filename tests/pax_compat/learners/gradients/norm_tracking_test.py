"""Rejection of steps by gradient norms, against numpy."""

import numpy as np
import pytest

from pax_compat import errors, learners, optimizers
from tests.pax_compat.learners import stepping

PARAMS = {'w': np.zeros(2, np.float32)}
# Only the 1000 is far from the norms before.
NORMS = [1.0, 2.0, 1.5, 1.0, 1000.0, 1.2, 3.0]


def _tracker(**fields):
  return learners.GradNormTracker.config(decay=0.5, **fields)


def _gradients(norms=NORMS):
  return [{'w': np.array([0.6, 0.8], np.float32) * norm} for norm in norms]


def _trained(tracker, norms=NORMS, **fields):
  """Returns the norm of each step's updates, and the states."""
  built = stepping.learner(
    grad_norm_tracker=tracker, nonfinite_gradients='zero', **fields
  )
  history = stepping.steps(built, PARAMS, _gradients(norms))
  weights = [PARAMS['w'], *(params['w'] for params, _, _ in history)]
  moved = np.linalg.norm(np.diff(weights, axis=0), axis=1) / stepping.RATE
  return moved, history


def _expected(norms, *, decay, floor, threshold, least):
  """Returns for each norm whether it is rejected, and the statistics after."""
  mean_sum = square_sum = weight = rejections = 0.0
  found = []
  for norm in norms:
    seen = np.log(max(norm, floor) + 1)
    shared = max(weight, 1e-6)
    mean = mean_sum / shared
    deviation = np.sqrt(max(square_sum / shared - mean**2, 1e-6))
    limit = max(mean + threshold * deviation, np.log(least + 1))
    rejected = seen > limit and weight > 0.75
    counted = min(seen, limit)
    mean_sum += (1 - decay) * (counted - mean_sum)
    square_sum += (1 - decay) * (counted**2 - square_sum)
    weight += (1 - decay) * (1 - weight)
    rejections += rejected
    found.append((rejected, (mean_sum, square_sum, weight, rejections)))
  return found


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'clip_threshold': 1.0},
    {'grad_norm_lower_cap': 1.4},
    {'grad_norm_clip_cap_min': 50.0},
    {'grad_norm_clip_cap_min': 2000.0},
  ],
)
def test_steps_with_large_gradients_are_rejected(fields):
  moved, history = _trained(_tracker(**fields))
  expected = _expected(
    NORMS,
    decay=0.5,
    floor=fields.get('grad_norm_lower_cap', 1e-2),
    threshold=fields.get('clip_threshold', 4.0),
    least=fields.get('grad_norm_clip_cap_min', 0.0),
  )
  for step, (rejected, statistics) in enumerate(expected):
    _, state, metrics = history[step]
    np.testing.assert_allclose(
      moved[step], 0 if rejected else NORMS[step], rtol=1e-3
    )
    np.testing.assert_allclose(state.norms, statistics, rtol=1e-4)
    assert metrics['learning/rejected_steps'] == statistics[-1]
    assert metrics['learning/grad_scale'] == 1 - rejected
  is_far = fields.get('grad_norm_clip_cap_min', 0) < 1000
  assert expected[4][0] == is_far


def test_the_optimizer_steps_on_with_gradients_of_zero():
  """Its mean of earlier gradients still moves the weights."""
  adam = optimizers.Adam.config(learning_rate=stepping.RATE)
  moved, history = _trained(_tracker(), optimizer=adam)
  assert history[4][2]['learning/grad_scale'] == 0
  assert 0 < moved[4] < moved[3]


def test_a_dry_run_only_counts():
  moved, history = _trained(_tracker(dry_run=True))
  np.testing.assert_allclose(moved, NORMS, rtol=1e-3)
  assert history[-1][1].norms.total_rejections > 0


def test_the_norm_is_the_one_before_clipping():
  clipping = stepping.sgd(clip_gradient_norm_to_value=1.0)
  _, history = _trained(_tracker())
  moved, clipped = _trained(_tracker(), optimizer=clipping)
  np.testing.assert_allclose(
    clipped[-1][1].norms, history[-1][1].norms, rtol=1e-6
  )
  assert moved.max() < 1.001


def test_nonfinite_gradients_do_not_change_the_averages():
  norms = [1.0, 2.0, np.nan, np.inf, 1.5]
  moved, history = _trained(_tracker(), norms)
  np.testing.assert_array_equal(moved[2:4], 0)
  before, after = history[1][1].norms, history[3][1].norms
  np.testing.assert_array_equal(before[:3], after[:3])
  assert after.total_rejections == before.total_rejections + 2


def test_an_invalid_decay():
  with pytest.raises(errors.UserError, match='decay is 1.0; expected'):
    learners.GradNormTracker.config(decay=1.0).Instantiate()


def test_gradients_that_are_measured_separately():
  with pytest.raises(errors.UserError, match='apply_separate_scaling'):
    stepping.learner(
      cls=learners.MultiOptimizerLearner,
      grad_norm_tracker=_tracker(),
      apply_separate_scaling=True,
      auxiliary_optimizers=[stepping.sgd()],
      auxiliary_regex=['params/w'],
      auxiliary_names=['other'],
    )
