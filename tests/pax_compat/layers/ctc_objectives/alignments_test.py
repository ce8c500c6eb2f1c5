"""CTC alignments; their numbers are held against Pax's in tests/pax."""

import jax.numpy as jnp
import numpy as np
import optax

from pax_compat.layers import ctc_objectives

# The classes 0, 0, 1, 0, 2, 2 of six frames, of which 0 is the blank.
FRAMES = np.array([0, 0, 1, 0, 2, 2])
LOGITS = 10 * np.eye(3, dtype=np.float32)[FRAMES][np.newaxis]
NO_PADDING = np.zeros([1, 6], np.float32)
LABELS = np.array([[1, 2]])


def test_labels_begin_at_their_frames():
  first = ctc_objectives.forced_alignment(
    LOGITS, NO_PADDING, LABELS, NO_PADDING[:, :2]
  )
  np.testing.assert_array_equal(first, [[2, 4]])


def test_the_loss_is_that_of_optax():
  losses, found = ctc_objectives.ctc_loss_with_alignments(
    LOGITS, NO_PADDING, LABELS, NO_PADDING[:, :2]
  )
  want = optax.ctc_loss(LOGITS, NO_PADDING, LABELS, NO_PADDING[:, :2])
  np.testing.assert_allclose(losses, want, rtol=1e-6)
  np.testing.assert_array_equal(found.alignment, [[0, 0, 1, 1, 2, 2]])


def test_padding_makes_no_difference():
  longer = jnp.pad(LOGITS, [(0, 0), (0, 2), (0, 0)])
  first = ctc_objectives.forced_alignment(
    longer,
    np.pad(NO_PADDING, [(0, 0), (0, 2)], constant_values=1),
    np.array([[1, 2, 0]]),
    np.array([[0, 0, 1.0]]),
  )
  np.testing.assert_array_equal(first[:, :2], [[2, 4]])


def test_too_few_frames():
  labels = np.array([[1, 1, 2, 2, 2]])
  paddings = np.zeros([1, 5], np.float32)
  # 5 labels and 3 blanks between equal ones.
  assert ctc_objectives.is_valid_ctc_seq(NO_PADDING, labels, paddings) == 0
  first = ctc_objectives.forced_alignment(LOGITS, NO_PADDING, labels, paddings)
  np.testing.assert_array_equal(first, -np.ones([1, 5]))
  assert ctc_objectives.is_valid_ctc_seq(NO_PADDING, LABELS, paddings[:, :2])
