"""Rounding of arrays to few bits, with scales and zero points."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat.layers.quantization import optimization

# The largest value of float8_e4m3fn.
_FP8_MAX = 448.0


def get_min_max(
  bits: int = 8, unsigned: bool = False, use_fp: bool = False
) -> tuple[float, float]:
  """Returns the range of integers of `bits` bits, or of floats of 8 bits."""
  if use_fp:
    return -_FP8_MAX, _FP8_MAX
  if unsigned:
    return 0, 2**bits - 1
  return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def pass_through(x: jax.Array, fn) -> jax.Array:
  """Returns `fn(x)`, with the gradient of `x`."""
  return x - jax.lax.stop_gradient(x) + jax.lax.stop_gradient(fn(x))


def reduce_precision(
  t: jax.Array,
  contract_dims: int | Sequence[int] | None,
  need_gradient: bool = False,
  bits: int = 8,
  optimization_on_bound: bool = False,
  p_value: float = 1.0,
  percentile: float = 1.0,
  use_symmetric: bool = True,
  use_fp: bool = False,
  add_scale_eps: bool = False,
  scale_eps: float = -1.0,
  per_channel: bool = False,
  random_rounding: bool = False,
  key: jax.Array | None = None,
  save_fp8_to_int8: bool = True,
  quant_method: str = 'default',
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Rounds an array to integers.

  Args:
    t: floats of any shape.
    contract_dims: dimensions that share a scale; None for one scale.
    need_gradient: whether the integers are returned as floats, with gradients
      that ignore the rounding.
    bits: number of bits.
    optimization_on_bound: whether the bound is that of the smallest error, see
      `optimization.get_best_bound`; not with a `percentile` below 1.
    p_value: exponent of this error.
    percentile: factor on the bound; larger values are clipped.
    use_symmetric: whether zero is the integer 0.
    use_fp: whether values become float8_e4m3fn instead.
    add_scale_eps: whether a small number is added to scales; else those of 0
      become 1.
    scale_eps: that number; if negative, the precision of the dtype.
    per_channel: whether each scale has a bound of its own, with
      `optimization_on_bound`.
    random_rounding: whether a random number of -0.5 to 0.5 is added before.
    key: the random key for that.
    save_fp8_to_int8: whether bits of floats are returned as int8; else the
      values, as bfloat16.
    quant_method: 'default'; with 1 bit also 'bin', the sign with the mean
      absolute value as scale, or 'bin_norm', likewise without the mean.

  Returns:
    The integers (int8, int16 or int32), the scales and the zero points (None if
    symmetric), both of the shape of `t` with `contract_dims` of size 1. `t` is
    about integers * scale - zero points.
  """
  axis = contract_dims
  if axis is not None and not isinstance(axis, int):
    axis = tuple(axis)
  if bits == 1 and quant_method in ('bin', 'bin_norm'):
    return _signs(t, axis, without_mean=quant_method == 'bin_norm')
  low, high = get_min_max(bits, use_fp=use_fp)
  bound, smallest = bounds(t, axis, use_symmetric=use_symmetric)
  steps = high if use_symmetric else high - low
  if isinstance(percentile, jax.Array) or percentile < 1.0:
    bound = bound * percentile
  elif optimization_on_bound:
    bound = optimization.get_best_bound(
      t, bound, low, high, p_value, per_channel=per_channel
    )
  scale = nonzero_scale(
    bound / steps, t.dtype, scale_eps if add_scale_eps else None
  )
  values, zero = t / scale, None
  if smallest is not None:
    zero = low - smallest / scale
    values, zero = values + zero, scale * zero
  if use_fp:
    return _as_fp8(values, as_int8=save_fp8_to_int8), scale, zero
  if need_gradient:
    return jnp.clip(pass_through(values, jnp.round), low, high), scale, zero
  if random_rounding:
    values += jax.random.uniform(key, t.shape, minval=-0.5, maxval=0.5)
  dtype = jnp.int8 if bits <= 8 else jnp.int16 if bits <= 16 else jnp.int32
  return jnp.clip(jnp.round(values), low, high).astype(dtype), scale, zero


def bounds(
  t: jax.Array, axis, *, use_symmetric: bool
) -> tuple[jax.Array, jax.Array | None]:
  """Returns what the largest integer stands for, and the smallest value.

  Args:
    t: the values.
    axis: dimensions that share a bound; None for all.
    use_symmetric: whether the bound is that of absolute values; then the second
      result is None. Else the bound is the range of the values.
  """
  if use_symmetric:
    return jnp.max(jnp.abs(t), axis=axis, keepdims=True), None
  smallest = jnp.min(t, axis=axis, keepdims=True)
  return jnp.max(t, axis=axis, keepdims=True) - smallest, smallest


def nonzero_scale(scale: jax.Array, dtype, epsilon: float | None) -> jax.Array:
  """Returns scales that can be divided by.

  Args:
    scale: the scales, not negative.
    dtype: dtype of the values.
    epsilon: what is added; if negative, the precision of `dtype`. None replaces
      0 by 1.
  """
  if epsilon is None:
    return jnp.where(scale == 0, jnp.ones_like(scale), scale)
  return scale + (jnp.finfo(dtype).eps if epsilon < 0 else epsilon)


def _signs(t: jax.Array, axis, *, without_mean: bool):
  """Returns the signs as floats, the scales, and None."""
  if without_mean:
    t = t - jnp.mean(t, axis=axis, keepdims=True)
  # The sign is never 0.
  t = jnp.where(t == 0, 1e-6, t)
  scale = jnp.mean(jnp.abs(t), axis=axis, keepdims=True)
  return pass_through(t, jnp.sign), scale, None


def _as_fp8(values: jax.Array, *, as_int8: bool) -> jax.Array:
  values = jnp.clip(values, -_FP8_MAX, _FP8_MAX).astype(jnp.float8_e4m3fn)
  if as_int8:
    return jax.lax.bitcast_convert_type(values, jnp.int8)
  return values.astype(jnp.bfloat16)


def reduce_precision_activation(
  t: jax.Array,
  need_gradient: bool = False,
  bits: int = 8,
  contract_dims: Sequence[int] | None = None,
  symmetric: bool = True,
  percentile: float = 1.0,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Rounds the inputs of a product; see `reduce_precision`."""
  return reduce_precision(
    t,
    contract_dims,
    need_gradient,
    bits,
    use_symmetric=symmetric,
    percentile=percentile,
  )


class FP4:
  """Floats of 4 bits.

  Attributes:
    v: the values, in order.
  """

  def __init__(self, val: Sequence[float] | None = None):
    half = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    default = (*(-x for x in reversed(half)), 0.0, *half)
    self.v = jnp.array(val or default, jnp.float32)

  def round(self, x: jax.Array) -> jax.Array:
    """Returns the nearest values, of the shape of `x`."""
    return self.v[jnp.argmin(jnp.abs(x[..., None] - self.v), axis=-1)]

  def nudge(self, x: jax.Array, contract_dim: Sequence[int]) -> jax.Array:
    """Returns `x` after rounding; `contract_dim` share scale and zero point."""
    axis = tuple(contract_dim)
    low, high = self.v[0], self.v[-1]
    smallest = jnp.min(x, axis=axis, keepdims=True)
    largest = jnp.max(x, axis=axis, keepdims=True)
    scale = (largest - smallest) / (high - low) + jnp.finfo(x.dtype).eps
    zero = low - smallest / scale
    return ((self.round(x / scale + zero) - zero) * scale).astype(x.dtype)


def clip_to_fp16(t: jax.Array) -> jax.Array:
  """Returns `t`, in which values beyond float16 are multiplied by 0.99."""
  return jnp.where(jnp.abs(t) > jnp.finfo(jnp.float16).max, t * 0.99, t)


def factorize_weight(var: jax.Array, rank: int) -> tuple[jax.Array, jax.Array]:
  """Returns the best product of low rank instead of a matrix.

  Args:
    var: matrices [..., I, O].
    rank: R; at most the smaller of I and O is used.

  Returns:
    [..., I, R] with orthonormal columns, and [..., R, O].
  """
  left, values, right = jnp.linalg.svd(var, full_matrices=False)
  return (
    left[..., :rank],
    values[..., :rank, None] * right[..., :rank, :],
  )
