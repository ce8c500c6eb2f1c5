"""Masks, element by element."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layers.attentions import attention_masks


def test_paddings_hide_sources():
  mask = attention_masks.padding_mask(jnp.array([[0.0, 1.0]]))
  assert mask.shape == (1, 1, 1, 2)
  np.testing.assert_array_equal(mask[0, 0, 0], [True, False])


@pytest.mark.parametrize(('targets', 'sources'), [(3, None), (3, 5), (4, 2)])
def test_causality_hides_what_comes_later(targets, sources):
  mask = attention_masks.causal_mask(targets, sources)
  assert mask.shape == (1, 1, targets, sources or targets)
  for t, s in np.ndindex(*mask.shape[2:]):
    assert mask[0, 0, t, s] == (s <= t)


@pytest.mark.parametrize('of_sources', [None, [[1, 2, 2], [0, 3, 1]]])
def test_segments_hide_each_other(of_sources):
  segments = np.array([[1, 1, 2, 2], [3, 3, 3, 0]])
  sources = None if of_sources is None else np.array(of_sources)
  mask = attention_masks.segment_mask(segments, sources)
  sources = segments if sources is None else sources
  assert mask.shape == (2, 1, 4, sources.shape[1])
  for b, t, s in np.ndindex(2, 4, sources.shape[1]):
    assert mask[b, 0, t, s] == (segments[b, t] == sources[b, s])


def test_a_step_knows_what_is_decoded_so_far():
  mask = attention_masks.step_mask(jnp.asarray(2), 2, 6)
  np.testing.assert_array_equal(
    mask, np.array([[[[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]]]], bool)
  )
  mask = attention_masks.step_mask(jnp.asarray(2), 2, 6, causal=False)
  np.testing.assert_array_equal(mask, [[[[1, 1, 1, 1, 0, 0]]]])


def test_combined_masks_hide_what_any_of_them_hides():
  assert attention_masks.combine_masks(None, None) is None
  one = np.array([True, True, False])
  other = np.array([[True], [False]])
  np.testing.assert_array_equal(
    attention_masks.combine_masks(None, one, None), one
  )
  np.testing.assert_array_equal(
    attention_masks.combine_masks(one, other),
    [[True, True, False], [False, False, False]],
  )
