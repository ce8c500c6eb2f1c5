"""Paddings: 1 where a position of a batch holds nothing, else 0.

Shapes: B batch, T time.
"""

import jax
import jax.numpy as jnp

from pax_compat import errors


def expand_paddings(paddings: jax.Array, inputs: jax.Array) -> jax.Array:
  """Returns paddings with as many dimensions as what they are the paddings of.

  Args:
    paddings: [B, T] or whatever the first dimensions of `inputs` are.
    inputs: [B, T, ...].

  Returns:
    `paddings` [B, T, 1, ...].

  Raises:
    UserError: `paddings` do not fit the first dimensions of `inputs`.
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
  """Returns `inputs` with `value` at padded positions, whatever stood there.

  Args:
    inputs: [B, T, ...].
    paddings: [B, T], or any of the first dimensions of `inputs`.
    value: what padded positions hold from now on.
  """
  padded = expand_paddings(paddings, inputs) > 0
  return jnp.where(padded, jnp.asarray(value, inputs.dtype), inputs)
