"""Additive masks and blocks of sequences, against plain loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.attentions import additive_masks, sequence_blocks

T = 5
HIDDEN = -0.7 * np.finfo(np.float32).max


def _is_hidden(mask):
  assert np.isin(np.asarray(mask), [0, np.float32(HIDDEN)]).all()
  return np.asarray(mask) < 0


@pytest.mark.parametrize('left', [None, 1, 3])
@pytest.mark.parametrize('right', [None, 0, 2])
def test_windows(left, right):
  mask = _is_hidden(additive_masks.limited_context_mask(left, right, T))
  for target in range(T):
    for source in range(T):
      early = left is not None and source <= target - left
      late = right is not None and source > target + right
      assert mask[target, source] == (early or late)


def test_packed_rows_of_which_a_prefix_is_seen():
  ids = jnp.array([[1, 1, 1, 2, 2]])
  is_causal = jnp.array([[0, 0, 1, 1, 1]])
  mask = additive_masks.causal_segment_mask(ids, jnp.float32, is_causal)
  want = ['00111', '00111', '00011', '11101', '11100']
  assert (_is_hidden(mask[0, 0]) == [[c == '1' for c in r] for r in want]).all()
  plain = additive_masks.causal_segment_mask(ids)
  assert _is_hidden(plain[0, 0, 0]).tolist() == [False] + [True] * 4


def test_a_merged_mask_hides_padded_targets_too():
  paddings = additive_masks.convert_paddings_to_mask(jnp.array([[0, 0, 1.0]]))
  causal = additive_masks.causal_mask(jnp.zeros([1, 3, 1]))
  merged = _is_hidden(additive_masks.merge_masks(causal, paddings))[0, 0]
  assert merged.astype(int).tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 1]]
  with pytest.raises(errors.UserError, match='expected the same T and S'):
    additive_masks.merge_masks(causal, paddings[..., :2])


@pytest.mark.parametrize('offset', [-7, -2, 0, 3])
def test_shifts(offset):
  x = jnp.arange(1, 11).reshape(2, T)
  want = np.zeros([2, T])
  for i in range(T):
    if 0 <= i - offset < T:
      want[:, i] = x[:, i - offset]
  np.testing.assert_array_equal(sequence_blocks.shift_1d(x, offset, 1), want)


@pytest.mark.parametrize('left', [1, 3])
@pytest.mark.parametrize('right', [0, 2])
def test_blocks_and_their_context(left, right):
  size = 2
  x = jnp.arange(1, T + 1)[None, :, None]
  blocks = sequence_blocks.convert_to_block(x, size, -1)
  seen = sequence_blocks.extract_block_context(x, size, left, right, -1)
  mask = sequence_blocks.local_mask(T, size, left, right)
  assert blocks[0, :, :, 0].tolist() == [[1, 2], [3, 4], [5, -1]]
  for block in range(3):
    for i in range(seen.shape[2]):
      source = block * size - (left - 1) + i
      inside = 0 <= source < T
      assert seen[0, block, i, 0] == (source + 1 if inside else -1)
      for j in range(size):
        target = block * size + j
        near = target - left < source <= target + right
        assert mask[block, j, i] == (near and inside and target < T)


def test_contexts_beyond_the_neighbours_are_refused():
  with pytest.raises(
    errors.UserError, match='left_context is 4; expected 1 to'
  ):
    sequence_blocks.extract_block_context(jnp.ones([1, T]), 2, 4, 0)


@pytest.mark.parametrize('axis', [0, 1])
def test_chunks_and_back(axis):
  x = jnp.arange(1, 11).reshape(T, 2) if axis == 0 else jnp.arange(15.0)
  x = x if axis == 0 else x.reshape(3, T)
  chunks = sequence_blocks.chunk(x, chunk_size=2, axis=axis)
  assert chunks.shape == ((3, 2, 2) if axis == 0 else (3, 3, 2))
  np.testing.assert_array_equal(
    sequence_blocks.unchunk(chunks, axis, T), np.asarray(x)
  )
  assert sequence_blocks.unchunk(chunks, axis).shape[axis] == 6
