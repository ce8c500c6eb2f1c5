"""Equations of products, packing of 4 bits, and search in configs.

An equation is 'inputs,weight->outputs'; a letter names a dimension, and '...'
stands for the leading ones of the inputs.
"""

import string
from collections.abc import Sequence
from typing import Any

import fiddle as fdl
import jax
import jax.numpy as jnp
from fiddle import daglish

from pax_compat import errors

INT4_TYPES = [jnp.int4, jnp.uint4]
INT_TYPES = [
  *INT4_TYPES,
  jnp.int8,
  jnp.uint8,
  jnp.int16,
  jnp.uint16,
  jnp.int32,
  jnp.uint32,
]


def split_equation(eqn: str) -> tuple[str, str, str]:
  """Returns the letters of inputs, weight and outputs, with '...'."""
  operands, arrow, outputs = eqn.replace(' ', '').partition('->')
  parts = operands.split(',')
  if not arrow or len(parts) != 2:
    raise errors.UserError(
      f'the equation {eqn!r} is not supported; expected'
      " 'inputs,weight->outputs'"
    )
  return parts[0], parts[1], outputs


def without_ellipsis(eqn: str, inputs: Any, weight: Any) -> str:
  """Returns an equation with a letter for each dimension of '...'.

  >>> without_ellipsis('...y,yz->...z', jnp.ones([2, 3]), jnp.ones([3, 4]))
  'Ay,yz->Az'

  Args:
    eqn: the equation.
    inputs: the first array; only its rank is used.
    weight: the second array, likewise.
  """
  first, second, _ = split_equation(eqn)
  sizes = [
    array.ndim - len(part.replace('.', ''))
    for part, array in ((first, inputs), (second, weight))
    if '...' in part
  ]
  unused = [c for c in string.ascii_letters[::-1] if c not in eqn]
  unused = sorted(unused[: max(sizes, default=0)])
  return eqn.replace(' ', '').replace('...', ''.join(unused))


def einsum_eqn_to_dimension_numbers(
  eqn: str,
) -> tuple[tuple, tuple[int, ...] | None]:
  """Returns what `lax.dot_general` needs for an equation.

  Args:
    eqn: an equation without '...'; a letter occurs once in each array.

  Returns:
    The dimension numbers, and the permutation of the result's dimensions, None
    if they are in order.

  Raises:
    UserError: the equation is of another form, or sums over a dimension that
      only one array has.
  """
  lhs, rhs, outputs = split_equation(eqn)
  if '.' in eqn or any(len(set(x)) != len(x) for x in (lhs, rhs)):
    raise errors.UserError(
      f"the equation {eqn!r} is not supported; expected no '...', and each"
      ' letter once in an array'
    )
  batch = [c for c in outputs if c in lhs and c in rhs]
  summed = sorted(set(lhs) - set(outputs))
  if set(summed) != set(rhs) - set(outputs):
    raise errors.UserError(
      f'the equation {eqn!r} sums over a dimension of one array only'
    )
  numbers = tuple(
    tuple(tuple(x.index(c) for c in letters) for x in (lhs, rhs))
    for letters in (summed, batch)
  )
  result = batch + [c for c in lhs + rhs if c not in batch and c in outputs]
  if result == list(outputs):
    return numbers, None
  return numbers, tuple(result.index(c) for c in outputs)


def dtype_to_bits(dtype: Any) -> int:
  """Returns the number of bits of an integer or floating type."""
  dtype = jnp.dtype(dtype)
  return 4 if dtype in INT4_TYPES else dtype.itemsize * 8


def bits_to_dtype(bits: int, signed: bool = True) -> Any:
  """Returns the smallest integer type with a number of bits, up to 32.

  Raises:
    UserError: there are more bits, or none.
  """
  for size in (4, 8, 16, 32):
    if 1 <= bits <= size:
      return getattr(jnp, f'int{size}' if signed else f'uint{size}')
  raise errors.UserError(f'bits is {bits}; expected 1 to 32')


def get_smallest_matching_dtype(lhs: Any, rhs: Any) -> Any:
  """Returns the smallest integer type that has the values of both arrays.

  That of uint32 and a signed type is int32, since JAX has no larger one by
  default.

  Raises:
    UserError: one is not an array of integers.
  """
  for x in (lhs, rhs):
    if x.dtype not in INT_TYPES:
      raise errors.UserError(f'the dtype is {x.dtype}; expected integers')
  is_signed = [jnp.issubdtype(x.dtype, jnp.signedinteger) for x in (lhs, rhs)]
  bits = [dtype_to_bits(x.dtype) for x in (lhs, rhs)]
  if is_signed[0] == is_signed[1]:
    return (lhs if bits[0] >= bits[1] else rhs).dtype
  signed, unsigned = bits if is_signed[0] else bits[::-1]
  return jnp.dtype(bits_to_dtype(min(32, max(signed, 2 * unsigned))))


def pack_4bit(
  x: jax.Array, pack_dim: int, packed_dtype: Any = jnp.int32
) -> jax.Array:
  """Packs integers of 4 bits into larger ones, the first in the lowest bits.

  Args:
    x: int8 with values in -8..7, or uint8 with values in 0..15.
    pack_dim: dimension along which neighbours share an integer.
    packed_dtype: `int32` for 8 of them, `int8` for 2.

  Returns:
    Integers; the dimension is 8 or 2 times smaller.

  Raises:
    UserError: its size is not a multiple of that, or a dtype is another one.
  """
  if x.dtype not in (jnp.int8, jnp.uint8) or packed_dtype not in (
    jnp.int32,
    jnp.int8,
  ):
    raise errors.UserError(
      f'{x.dtype} cannot be packed in {jnp.dtype(packed_dtype)}; expected int8'
      ' or uint8 in int32 or int8'
    )
  count = jnp.iinfo(packed_dtype).bits // 4
  shape = list(x.shape)
  shape[pack_dim : pack_dim + 1] = [
    get_packed_shape(shape, pack_dim, count)[pack_dim],
    count,
  ]
  unsigned = jnp.dtype(f'uint{4 * count}')
  nibbles = (x & jnp.array(0x0F, x.dtype)).astype(unsigned).reshape(shape)
  shifts = 4 * jnp.arange(count, dtype=unsigned)
  shifts = shifts.reshape([count] + [1] * (x.ndim - pack_dim - 1))
  packed = jnp.sum(nibbles << shifts, axis=pack_dim + 1, dtype=unsigned)
  return jax.lax.bitcast_convert_type(packed, packed_dtype)


def unpack_4bit(
  packed: jax.Array, pack_dim: int, original_dtype: Any = jnp.int8
) -> jax.Array:
  """Returns the values that `pack_4bit` packed.

  Args:
    packed: int32 or int8.
    pack_dim: the dimension along which they are packed.
    original_dtype: `int8` or `uint8`.
  """
  bits = jnp.iinfo(packed.dtype).bits
  count = bits // 4
  shifts = jnp.arange(count, dtype=packed.dtype) * 4
  shifts = shifts.reshape([count] + [1] * (packed.ndim - pack_dim - 1))
  # Shifted to the highest bits and back, which keeps the sign.
  high = jnp.expand_dims(packed, pack_dim + 1) << (bits - 4 - shifts)
  signed = jnp.issubdtype(original_dtype, jnp.signedinteger)
  shift = (
    jax.lax.shift_right_arithmetic if signed else jax.lax.shift_right_logical
  )
  values = shift(high, jnp.full_like(high, bits - 4)).astype(original_dtype)
  shape = list(packed.shape)
  shape[pack_dim] *= count
  return values.reshape(shape)


def get_packed_shape(
  shape: Sequence[int], pack_dim: int, packing_factor: int
) -> list[int]:
  """Returns a shape with one dimension divided by the packing factor.

  Raises:
    UserError: its size is not a multiple of the factor.
  """
  if shape[pack_dim] % packing_factor:
    raise errors.UserError(
      f'a weight of the shape {list(shape)} cannot be packed along dimension'
      f' {pack_dim}: {shape[pack_dim]} is not a multiple of {packing_factor};'
      ' use use_int4_packed_weights=False, or another'
      ' int4_packed_weights_container_dtype'
    )
  shape = list(shape)
  shape[pack_dim] //= packing_factor
  return shape


def find_target_tpl(
  config: fdl.Config | Sequence[fdl.Config], targets: type | Sequence[type]
) -> list[fdl.Config]:
  """Returns the templates of some classes or their subclasses in a config.

  Args:
    config: a config, or several.
    targets: a class, or several.
  """
  classes = (targets,) if isinstance(targets, type) else tuple(targets)
  found: list[fdl.Config] = []
  seen = set()
  for value, _ in daglish.iterate(config):
    if not isinstance(value, fdl.Config) or id(value) in seen:
      continue
    seen.add(id(value))
    cls = fdl.get_callable(value)
    if isinstance(cls, type) and issubclass(cls, classes):
      found.append(value)
  return found


def get_lora_shape_and_eqn(
  shape: Sequence[int], lora_size: int, eqn: str, max_reduction: bool = True
) -> tuple[str, str, list[int], list[int], list[int], list[int]]:
  """Returns the two products that are of low rank instead of one product.

  >>> get_lora_shape_and_eqn([3, 5], 2, '...d,df->...f')
  ('...d,da->...a', '...a,af->...f', [3, 2], [2, 5], [1], [0])

  Args:
    shape: shape of the weight.
    lora_size: the rank.
    eqn: the equation of the product.
    max_reduction: whether of two dimensions that are summed over only the
      larger one is mapped to the rank; else both are, each to one dimension.

  Returns:
    The equations of the left and of the right weight, their shapes, and the
    dimensions of the rank in each of them.

  Raises:
    UserError: the equation sums over no dimension, or over more than two.
  """
  inputs, weight, outputs = split_equation(eqn)
  summed = [c for c in inputs if c in weight]
  if not 1 <= len(summed) <= 2:
    raise errors.UserError(
      f'{eqn!r} sums over {len(summed)} dimensions; expected 1 or 2'
    )
  if max_reduction:
    summed = [max(summed, key=lambda c: shape[weight.index(c)])]
  new = [c for c in string.ascii_lowercase if c not in inputs + weight]
  new = new[: len(summed)]
  table = str.maketrans(dict(zip(summed, new, strict=True)))
  between, right = inputs.translate(table), weight.translate(table)
  left = ''.join(summed + new)
  count = len(summed)
  return (
    f'{inputs},{left}->{between}',
    f'{between},{right}->{outputs}',
    [shape[weight.index(c)] for c in summed] + [lora_size] * count,
    [lora_size if c in new else n for c, n in zip(right, shape, strict=True)],
    list(range(count, 2 * count)),
    [weight.index(c) for c in summed],
  )


def get_left_weight_split_dims_mapping(
  weight_split_dims_mapping: Sequence[Any] | None, eqn_left_ind: Sequence[int]
) -> tuple | None:
  """Returns the split mapping of the left weight of low rank.

  Args:
    weight_split_dims_mapping: that of the weight; None if it is not split.
    eqn_left_ind: see `get_lora_shape_and_eqn`.
  """
  if weight_split_dims_mapping is None:
    return None
  count = len(eqn_left_ind)
  return (*weight_split_dims_mapping[:count], *[None] * count)


def get_right_weight_split_dims_mapping(
  weight_split_dims_mapping: Sequence[Any] | None, eqn_right_ind: Sequence[int]
) -> tuple | None:
  """Returns the split mapping of the right weight of low rank.

  Args:
    weight_split_dims_mapping: that of the weight; None if it is not split.
    eqn_right_ind: see `get_lora_shape_and_eqn`.
  """
  if weight_split_dims_mapping is None:
    return None
  return tuple(
    None if i in eqn_right_ind else axis
    for i, axis in enumerate(weight_split_dims_mapping)
  )
