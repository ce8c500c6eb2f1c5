"""Where packed examples start, for recurrent layers."""

from typing import Any

import jax
import jax.numpy as jnp


def reset_mask(
  segment_ids: jax.Array,
  paddings: jax.Array | None = None,
  dtype: Any = jnp.float32,
) -> jax.Array:
  """Returns 0 where an example starts, so that a state is reset, else 1.

  >>> print(reset_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([[0, 0, 0, 1]])))
  [[0. 1. 0. 1.]]

  Unlike `recurrent.reset_mask`, it resets the state at the first step, too.

  Args:
    segment_ids: [B, T] or [B, T, 1], the packed example of each step.
    paddings: of the same shape, 1 where a step is padding, which resets
      nothing; None for no padding.
    dtype: of the mask.
  """
  continues = segment_ids[:, 1:] == segment_ids[:, :-1]
  before = [(0, 0)] * segment_ids.ndim
  before[1] = (1, 0)
  mask = jnp.pad(continues, before, constant_values=False)
  if paddings is not None:
    mask |= paddings != 0
  return mask.astype(dtype)
