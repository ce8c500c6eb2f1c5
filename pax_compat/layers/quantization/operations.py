"""Rounding of arrays to integers with scales, and products with them.

In an equation 'inputs,weight->outputs', each letter of the weight is either
summed over or in the outputs. A weight has a scale for each value of the
letters that remain.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import errors


def get_min_max(bits: int = 8) -> tuple[int, int]:
  """Returns the range of signed integers of `bits` bits."""
  return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def eqn_to_weight_contract_dims(eqn: str) -> list[int]:
  """Returns the dimensions of the weight that an equation sums over."""
  _, weight, outputs = _parts(eqn)
  return [i for i, c in enumerate(weight) if c not in outputs]


def eqn_to_activation_contract_dims(eqn: str) -> list[int]:
  """Returns the dimensions of the inputs, negative, that it sums over."""
  inputs, _, outputs = _parts(eqn)
  size = len(inputs)
  return [i - size for i, c in enumerate(inputs) if c not in outputs]


def _parts(eqn: str) -> tuple[str, str, str]:
  """Returns the letters of inputs, weight and outputs, without '...'."""
  operands, _, outputs = eqn.replace(' ', '').partition('->')
  inputs, _, weight = operands.partition(',')
  return inputs.replace('.', ''), weight, outputs.replace('.', '')


def reduce_precision(
  t: jax.Array,
  contract_dims: Sequence[int] | None,
  need_gradient: bool = False,
  bits: int = 8,
  percentile: float = 1.0,
  use_symmetric: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Rounds an array to integers.

  Args:
    t: floats of any shape.
    contract_dims: dimensions that share a scale; None for one scale.
    need_gradient: whether the integers are returned as floats, with gradients
      that ignore the rounding.
    bits: number of bits.
    percentile: factor on the bound; larger values are clipped.
    use_symmetric: whether zero is the integer 0.

  Returns:
    The integers (int8), the scales and the zero points (None if symmetric),
    both of the shape of `t` with `contract_dims` of size 1. `t` is about
    integers * scale - zero points.
  """
  low, high = get_min_max(bits)
  axis = None if contract_dims is None else tuple(contract_dims)
  if use_symmetric:
    bound, steps = jnp.max(jnp.abs(t), axis=axis, keepdims=True), high
  else:
    smallest = jnp.min(t, axis=axis, keepdims=True)
    bound = jnp.max(t, axis=axis, keepdims=True) - smallest
    steps = high - low
  if percentile < 1.0:
    bound = bound * percentile
  scale = bound / steps
  scale = jnp.where(scale == 0, 1, scale)
  values, zero = t / scale, None
  if not use_symmetric:
    zero = low - smallest / scale
    values, zero = values + zero, scale * zero
  if need_gradient:
    rounded = jax.lax.stop_gradient(jnp.round(values))
    values = values - jax.lax.stop_gradient(values) + rounded
    return jnp.clip(values, low, high), scale, zero
  return jnp.clip(jnp.round(values), low, high).astype(jnp.int8), scale, zero


def reduce_einsum_weight_precision(
  eqn: str,
  t: jax.Array,
  calculation_dtype=jnp.float32,
  squeeze: bool = True,
  **settings,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Rounds the weight of an einsum; see `reduce_precision`.

  Args:
    eqn: its equation.
    t: the weight.
    calculation_dtype: dtype of the computation.
    squeeze: whether scales and zero points lack the dimensions summed over.
    **settings: further arguments of `reduce_precision`.
  """
  dims = eqn_to_weight_contract_dims(eqn)
  values, scale, zero = reduce_precision(
    t.astype(calculation_dtype), dims, **settings
  )
  if squeeze:
    scale = jnp.squeeze(scale, dims)
    zero = None if zero is None else jnp.squeeze(zero, dims)
  return values, scale, zero


def fakequant_einsum(
  eqn: str,
  t: jax.Array,
  bits: int = 8,
  calculation_dtype=jnp.float32,
  use_symmetric: bool = True,
) -> jax.Array:
  """Returns the weight of an einsum as it is after rounding, as floats.

  Args:
    eqn: its equation.
    t: the weight.
    bits: number of bits.
    calculation_dtype: dtype of the computation.
    use_symmetric: see `reduce_precision`.
  """
  values, scale, zero = reduce_einsum_weight_precision(
    eqn,
    t,
    calculation_dtype,
    squeeze=False,
    need_gradient=True,
    bits=bits,
    use_symmetric=use_symmetric,
  )
  rounded = values * scale if zero is None else values * scale - zero
  return rounded.astype(t.dtype)


def einsum(
  eqn: str,
  x: jax.Array,
  w: jax.Array,
  scale: jax.Array,
  zp: jax.Array | None = None,
  scale_act: jax.Array | None = None,
) -> jax.Array:
  """Multiplies with a quantized weight; returns the outputs, floats.

  Args:
    eqn: 'inputs,weight->outputs'; the inputs may start with '...'.
    x: inputs, floats, or integers with `scale_act`.
    w: integers.
    scale: scales of the weight, of its dimensions that are not summed over.
    zp: zero points, likewise; None if there are none.
    scale_act: scale of the inputs: [], or their shape with a size of 1 where
      they are summed over; None if they are floats.
  """
  operands, _, outputs = eqn.replace(' ', '').partition('->')
  inputs, weight = operands.split(',')
  kept = ''.join(c for c in weight if c in outputs)
  if scale_act is None:
    product = jnp.einsum(eqn, x, w.astype(x.dtype))
  else:
    product = jnp.einsum(eqn, x, w, preferred_element_type=jnp.int32)
    of_inputs = jnp.broadcast_to(scale_act, x.shape)
    # A scale is the same for all that is summed over: take the first.
    for i in eqn_to_activation_contract_dims(eqn):
      of_inputs = jax.lax.slice_in_dim(of_inputs, 0, 1, axis=of_inputs.ndim + i)
    ones = jnp.ones(
      [1 if c not in outputs else n for c, n in _sizes(weight, w)]
    )
    product = product * jnp.einsum(eqn, of_inputs, ones.astype(scale.dtype))
  result = jnp.einsum(f'{outputs},{kept}->{outputs}', product, scale)
  if zp is not None:
    floats = x if scale_act is None else x * scale_act
    result -= jnp.einsum(f'{inputs},{kept}->{outputs}', floats, zp)
  return result


def _sizes(letters: str, x: jax.Array) -> list[tuple[str, int]]:
  return list(zip(letters, x.shape, strict=True))


def pack_4bit(x: jax.Array, pack_dim: int, packed_dtype=jnp.int32) -> jax.Array:
  """Packs integers of 4 bits into larger ones, the first in the lowest bits.

  Args:
    x: int8, with values in -8..7.
    pack_dim: dimension along which neighbours share an integer.
    packed_dtype: `int32` for 8 of them, `int8` for 2.

  Returns:
    Integers; the dimension is 8 or 2 times smaller.

  Raises:
    UserError: its size is not a multiple of that.
  """
  count = jnp.iinfo(packed_dtype).bits // 4
  check_packing(x.shape, pack_dim, count)
  shape = list(x.shape)
  shape[pack_dim : pack_dim + 1] = [shape[pack_dim] // count, count]
  unsigned = jnp.dtype(f'uint{4 * count}')
  nibbles = (x.astype(jnp.int8) & 0x0F).astype(unsigned).reshape(shape)
  shifts = 4 * jnp.arange(count, dtype=unsigned)
  shifts = shifts.reshape([count] + [1] * (x.ndim - pack_dim - 1))
  packed = jnp.sum(nibbles << shifts, axis=pack_dim + 1, dtype=unsigned)
  return jax.lax.bitcast_convert_type(packed, packed_dtype)


def unpack_4bit(packed: jax.Array, pack_dim: int) -> jax.Array:
  """Returns the int8 values that `pack_4bit` packed."""
  bits = jnp.iinfo(packed.dtype).bits
  count = bits // 4
  shifts = jnp.arange(count, dtype=packed.dtype) * 4
  shifts = shifts.reshape([count] + [1] * (packed.ndim - pack_dim - 1))
  # Shifted to the highest bits and back, which keeps the sign.
  high = jnp.expand_dims(packed, pack_dim + 1) << (bits - 4 - shifts)
  values = jax.lax.shift_right_arithmetic(
    high, jnp.full_like(high, bits - 4)
  ).astype(jnp.int8)
  shape = list(packed.shape)
  shape[pack_dim] *= count
  return values.reshape(shape)


def check_packing(shape: Sequence[int], pack_dim: int, count: int):
  """Raises a `UserError` if a dimension is not a multiple of `count`."""
  if shape[pack_dim] % count:
    raise errors.UserError(
      f'a weight of the shape {list(shape)} cannot be packed along dimension'
      f' {pack_dim}: {shape[pack_dim]} is not a multiple of {count}; use'
      ' use_int4_packed_weights=False, or another'
      ' int4_packed_weights_container_dtype'
    )
