"""SpectrumAugmenter; its numbers are held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors, layers

B, T, D = 16, 40, 12
PADDINGS = (np.arange(T) >= 30).astype(np.float32) * np.ones([B, 1], np.float32)


def _masked(**fields):
  layer = layers.SpectrumAugmenter.config(**fields).Instantiate()
  rngs = {base_layer.RANDOM: jax.random.key(0)}
  outputs, paddings = layer.apply({}, jnp.ones([B, T, D]), PADDINGS, rngs=rngs)
  np.testing.assert_array_equal(paddings, PADDINGS)
  return np.asarray(outputs)


def test_spans_of_time():
  x = _masked(freq_mask_count=0, time_mask_count=1, time_mask_max_ratio=0.5)
  assert (x == x[:, :, :1]).all()
  hidden = x[:, :, 0] == 0
  assert hidden.any(1).sum() > B / 2
  assert not hidden[:, 30:].any()
  assert hidden.sum(1).max() <= 15
  # One span: it begins at most once.
  assert (np.diff(hidden.astype(int), axis=1) > 0).sum(1).max() <= 1


def test_spans_of_frequency():
  x = _masked(time_mask_count=0, freq_mask_count=2, freq_mask_max_bins=4)
  assert (x == x[:, :1]).all()
  hidden = x[:, 0] == 0
  assert 0 < hidden.sum(1).max() <= 6  # Each span is shorter than 4.


def test_the_number_of_masks_follows_the_length():
  few = _masked(freq_mask_count=0, time_mask_max_ratio=0.2)
  fewer = _masked(
    freq_mask_count=0, time_mask_max_ratio=0.2, time_masks_per_frame=0.05
  )
  assert (fewer == 0).sum() < (few == 0).sum()


def test_evaluation_masks_only_if_asked():
  with base_layer.eval_mode():
    assert (_masked() == 1).all()
    assert (_masked(augment_at_eval=True) == 0).any()


def test_a_negative_count():
  with pytest.raises(errors.UserError, match='time_mask_count is -1'):
    _masked(time_mask_count=-1)
