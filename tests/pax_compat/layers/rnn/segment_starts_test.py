"""Where packed examples start."""

import jax.numpy as jnp
import pytest

from pax_compat.layers.rnn import segment_starts


@pytest.mark.parametrize('by_column', [False, True])
def test_the_first_step_of_each_example(by_column):
  ids = jnp.array([[1, 1, 2, 0, 0], [1, 2, 2, 2, 3]])
  paddings = (ids == 0).astype(jnp.float32)
  if by_column:
    ids, paddings = ids[..., None], paddings[..., None]
  mask = segment_starts.reset_mask(ids, dtype=jnp.int32)
  assert mask.reshape(2, 5).tolist() == [[0, 1, 0, 0, 1], [0, 0, 1, 1, 0]]
  mask = segment_starts.reset_mask(ids, paddings, jnp.bfloat16)
  assert mask.reshape(2, 5).tolist() == [[0, 1, 0, 1, 1], [0, 0, 1, 1, 0]]
  assert (mask.shape, mask.dtype) == (ids.shape, jnp.bfloat16)
