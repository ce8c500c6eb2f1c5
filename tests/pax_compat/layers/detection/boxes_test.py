"""Tests of boxes and of their losses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layers.detection import box_losses, boxes

_BOX = np.array([1.0, 2, 3, 4, 2, 1, 0.5], np.float32)


def test_residuals_of_an_anchor():
  residuals = np.array([0.1, 0, -1, np.log(2), 0, 0, 3], np.float32)
  found = boxes.from_residuals(_BOX, residuals)
  moved = 1 + 0.1 * math.sqrt(20)
  wanted = [moved, 2, 2, 8, 2, 1, 3.5 - 2 * math.pi]
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_corners_turn_with_the_box():
  corners = boxes.corners(_BOX.copy())
  np.testing.assert_allclose(corners.mean(0), _BOX[:3], rtol=1e-5)
  along = (corners[0] - corners[1])[:2]
  np.testing.assert_allclose(
    along, 4 * np.array([math.cos(0.5), math.sin(0.5)]), rtol=1e-5
  )
  np.testing.assert_allclose(corners[0, 2] - corners[4, 2], 1, rtol=1e-5)


def test_opposite_boxes_have_the_same_corners():
  turned = _BOX + np.array([0, 0, 0, 0, 0, 0, math.pi], np.float32)
  moved = _BOX + np.array([0.5, 0, 0, 0, 0, 0, 0], np.float32)
  loss = box_losses.corner_loss(
    jnp.stack([_BOX] * 2), jnp.stack([turned, moved])
  )
  np.testing.assert_allclose(loss, [0, 8 * 0.5**2 / 2], atol=1e-5)


@pytest.mark.parametrize('gamma', [0.0, 2.0])
def test_focal_loss(gamma):
  p = np.array([0.2, 0.7])
  logits, labels = np.log(p / (1 - p)), np.array([1.0, 0.0])
  found = box_losses.focal_loss(logits, labels, alpha=0.25, gamma=gamma)
  wrong = np.array([0.8, 0.7])
  wanted = -np.array([0.25, 0.75]) * wrong**gamma * np.log(1 - wrong)
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_huber_loss_is_scaled():
  found = box_losses.scaled_huber(jnp.array([0.1, -2.0]), delta=0.5)
  np.testing.assert_allclose(found, [0.01, 1.75], rtol=1e-5)


def test_logits_of_zero_have_the_gradient_of_their_neighbours():
  """Those of cells without features are exactly 0 at first."""
  logits = jnp.array([-1e-4, 0.0, 1e-4])

  def loss(x, label):
    losses = box_losses.focal_loss(x, label, alpha=0.25, gamma=2.0)
    return jnp.sum(losses + box_losses.sigmoid_loss(x, label))

  for label in (0.0, 1.0):
    found = jax.grad(loss)(logits, label)
    np.testing.assert_allclose(found, found[::-1], rtol=1e-3)
    np.testing.assert_allclose(found[1], (found[0] + found[2]) / 2, rtol=1e-5)
