"""Paddings: 1 at padded positions of a batch, else 0.

Shapes: B batch, T time.
"""

import jax
import jax.numpy as jnp

from pax_compat import errors


def expand_paddings(paddings: jax.Array, inputs: jax.Array) -> jax.Array:
  """Returns paddings reshaped to broadcast against their inputs.

  Args:
    paddings: [B, T], or any leading dimensions of `inputs`.
    inputs: [B, T, ...].

  Returns:
    `paddings` [B, T, 1, ...].

  Raises:
    UserError: `paddings` do not match the leading dimensions of `inputs`.
  """
  missing = inputs.ndim - paddings.ndim
  fits = missing >= 0 and all(
    size in (1, whole)
    for size, whole in zip(paddings.shape, inputs.shape, strict=False)
  )
  if not fits:
    raise errors.UserError(
      f'paddings of shape {list(paddings.shape)} do not fit inputs of shape'
      f' {list(inputs.shape)}; expected their first dimensions'
    )
  return jnp.reshape(paddings, [*paddings.shape, *[1] * missing])


def apply_paddings(
  inputs: jax.Array, paddings: jax.Array, value: float = 0
) -> jax.Array:
  """Returns `inputs` with `value` at padded positions.

  Args:
    inputs: [B, T, ...]; may be infinite or NaN at padded positions.
    paddings: [B, T], or any leading dimensions of `inputs`.
    value: value for padded positions.
  """
  padded = expand_paddings(paddings, inputs) > 0
  return jnp.where(padded, jnp.asarray(value, inputs.dtype), inputs)
