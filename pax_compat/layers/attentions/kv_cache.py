"""Number types of the cache of keys and values.

Shapes: B batch, S positions, K heads of keys and values, H dims of a head.
"""

import jax
import jax.numpy as jnp

from pax_compat import errors

_INT8_MAX = 127
# The default is the type of the computation; a string is the type's name.
_FLOATS = ('float32', 'bfloat16', 'float16')
DTYPES = (*_FLOATS, 'int8')


def check(dtype: str | None, *, where: str):
  """Raises a UserError unless a cache may have this type.

  Args:
    dtype: its name, or a JAX type; None for that of the computation.
    where: the path of the field.
  """
  if dtype is None:
    return
  try:
    name = jnp.dtype(dtype).name
  except TypeError:
    name = str(dtype)
  if name not in DTYPES:
    raise errors.UserError(
      f'{where} is {dtype!r}; expected None or one of {", ".join(DTYPES)}'
      + errors.did_you_mean(name, DTYPES)
    )


def is_quantized(dtype: str | None) -> bool:
  """Whether numbers of this type have scales."""
  return dtype is not None and jnp.dtype(dtype) == jnp.int8


def quantize(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns `x` as int8, and the scale of each position and head.

  A number differs from the product of both by at most half a scale, which is
  the largest number of its head divided by 127.

  Args:
    x: [B, S, K, H].

  Returns:
    int8 [B, S, K, H], and float32 [B, S, K].
  """
  x = x.astype(jnp.float32)
  scale = jnp.max(jnp.abs(x), axis=-1) / _INT8_MAX
  divisor = jnp.where(scale == 0, 1.0, scale)[..., None]
  return jnp.round(x / divisor).astype(jnp.int8), scale


def dequantize(x: jax.Array, scale: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Returns quantized numbers `x` [B, S, K, H] in `dtype`."""
  return (x.astype(jnp.float32) * scale[..., None]).astype(dtype)
