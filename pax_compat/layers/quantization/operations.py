"""Products with rounded arrays.

In an equation 'inputs,weight->outputs', each letter of the weight is either
summed over or in the outputs. A weight has a scale for each value of the
letters that remain.
"""

import logging
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layers.quantization import rounding, sub_channels
from pax_compat.layers.quantization.utils import (
  INT4_TYPES,
  INT_TYPES,
  get_smallest_matching_dtype,
  split_equation,
  without_ellipsis,
)


def eqn_to_weight_contract_dims(eqn: str) -> list[int]:
  """Returns the dimensions of the weight that an equation sums over."""
  _, weight, outputs = split_equation(eqn)
  return [i for i, c in enumerate(weight) if c not in outputs]


def eqn_to_activation_contract_dims(eqn: str) -> list[int]:
  """Returns the dimensions of the inputs, negative, that it sums over."""
  inputs, _, outputs = split_equation(eqn)
  inputs = inputs.replace('.', '')
  return [-(i + 1) for i, c in enumerate(reversed(inputs)) if c not in outputs]


def reduce_einsum_weight_precision(
  eqn: str | None,
  t: jax.Array,
  calculation_dtype: Any = jnp.bfloat16,
  squeeze: bool = True,
  need_gradient: bool = False,
  bits: int = 8,
  optimization_on_bound: bool = False,
  percentile: float = 1.0,
  use_symmetric: bool = True,
  quant_method: str = 'default',
  contract_dims: list[int] | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Rounds the weight of an einsum; see `rounding.reduce_precision`.

  Args:
    eqn: its equation; None with `contract_dims`.
    t: the weight.
    calculation_dtype: dtype of the computation.
    squeeze: whether scales and zero points lack the dimensions summed over.
    need_gradient: see `reduce_precision`.
    bits: likewise.
    optimization_on_bound: likewise.
    percentile: likewise.
    use_symmetric: likewise.
    quant_method: likewise.
    contract_dims: the dimensions that are summed over, instead of the equation.

  Raises:
    UserError: neither the equation nor the dimensions are given, or both.
  """
  if (eqn is None) == (contract_dims is None):
    raise errors.UserError('expected either eqn or contract_dims')
  dims = contract_dims or eqn_to_weight_contract_dims(eqn or '')
  values, scale, zero = rounding.reduce_precision(
    t.astype(calculation_dtype),
    dims,
    need_gradient,
    bits,
    optimization_on_bound,
    percentile=percentile,
    use_symmetric=use_symmetric,
    quant_method=quant_method,
  )
  return values, *(_squeezed((scale, zero), dims) if squeeze else (scale, zero))


def reduce_einsum_activation_precision(
  eqn: str,
  t: jax.Array,
  bits: int = 8,
  squeeze: bool = True,
  per_channel: bool = False,
  symmetric: bool = True,
  percentile: float = 1.0,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """Rounds the inputs of an einsum; see `rounding.reduce_precision`.

  Args:
    eqn: its equation.
    t: the inputs.
    bits: number of bits.
    squeeze: whether scales and zero points lack the dimensions summed over.
    per_channel: whether each row that is summed over has a scale; else the
      whole array has one.
    symmetric: see `reduce_precision`.
    percentile: likewise.
  """
  dims = eqn_to_activation_contract_dims(eqn) if per_channel else None
  values, scale, zero = rounding.reduce_precision(
    t, dims, bits=bits, use_symmetric=symmetric, percentile=percentile
  )
  return values, *(_squeezed((scale, zero), dims) if squeeze else (scale, zero))


def _squeezed(arrays, dims):
  axis = None if dims is None else tuple(dims)
  return tuple(None if x is None else jnp.squeeze(x, axis) for x in arrays)


def fakequant_einsum(
  eqn: str,
  t: jax.Array,
  bits: int = 8,
  calculation_dtype: Any = jnp.float32,
  use_symmetric: bool = True,
  block_size: int = 0,
  use_fp: bool = False,
  quant_method: str = 'default',
) -> jax.Array:
  """Returns the weight of an einsum as it is after rounding, as floats.

  Args:
    eqn: its equation.
    t: the weight.
    bits: number of bits.
    calculation_dtype: dtype of the computation.
    use_symmetric: see `rounding.reduce_precision`.
    block_size: size of the blocks with a scale, see
      `sub_channels.get_sub_channel_shape`; 0 for one block.
    use_fp: with 4 bits: whether values are floats, see `rounding.FP4`.
    quant_method: see `rounding.reduce_precision`.
  """
  t = jnp.asarray(t)
  shape, dims = sub_channels.get_sub_channel_shape(
    t.shape, block_size, eqn_to_weight_contract_dims(eqn)
  )
  values = t.reshape(shape).astype(calculation_dtype)
  if use_fp and bits == 4:
    rounded = rounding.FP4().nudge(values, dims)
  else:
    values, scale, zero = rounding.reduce_precision(
      values,
      dims,
      need_gradient=True,
      bits=bits,
      use_symmetric=use_symmetric,
      quant_method=quant_method,
    )
    rounded = values * scale if zero is None else values * scale - zero
  return rounded.reshape(t.shape).astype(t.dtype)


def fakequant_activation(
  t: jax.Array,
  bits: int = 8,
  eqn: str | None = None,
  per_channel: bool = False,
  symmetric: bool = True,
  percentile: float = 1.0,
) -> jax.Array:
  """Returns the inputs of an einsum as they are after rounding, as floats.

  Args:
    t: the inputs.
    bits: number of bits.
    eqn: its equation, with `per_channel`.
    per_channel: see `reduce_einsum_activation_precision`.
    symmetric: likewise.
    percentile: likewise.

  Raises:
    UserError: `per_channel` without an equation.
  """
  if per_channel and eqn is None:
    raise errors.UserError('per_channel needs the equation, eqn')
  dims = eqn_to_activation_contract_dims(eqn) if per_channel and eqn else None
  values, scale, zero = rounding.reduce_precision_activation(
    t, True, bits, dims, symmetric, percentile
  )
  rounded = values * scale if zero is None else values * scale - zero
  return rounded.astype(t.dtype)


def compute_offset(
  eqn_normalized: str, x: jax.Array, zp: jax.Array
) -> jax.Array:
  """Returns what zero points of a weight subtract from a product.

  Args:
    eqn_normalized: the equation of the product.
    x: the inputs, floats.
    zp: the zero points, of the weight's dimensions that are not summed over.

  Raises:
    UserError: an array has integers.
  """
  for name, array in (('x', x), ('zp', zp)):
    if array.dtype in INT_TYPES:
      raise errors.UserError(f'{name} is {array.dtype}; expected floats')
  inputs, weight, outputs = split_equation(eqn_normalized)
  kept = ''.join(c for c in outputs if c in weight)
  return jnp.einsum(f'{inputs},{kept}->{outputs}', x, zp)


def einsum(
  eqn: str,
  x: jax.Array,
  w: jax.Array,
  scale: jax.Array,
  zp: jax.Array | None = None,
  scale_act: jax.Array | None = None,
  zp_act: jax.Array | None = None,
  scale_eqn: str | None = None,
  zp_eqn: str | None = None,
  swap_xw: bool = False,
) -> jax.Array:
  """Multiplies with a quantized weight; returns the outputs, floats.

  Args:
    eqn: 'inputs,weight->outputs'; the inputs may start with '...'.
    x: inputs, floats, or integers with `scale_act`.
    w: integers, or floats of 8 bits.
    scale: scales of the weight, of its dimensions that are not summed over.
    zp: zero points, likewise; None if there are none.
    scale_act: scale of the inputs: [], or of their dimensions that are not
      summed over; None if they are floats.
    zp_act: zero points of the inputs, likewise; None if there are none.
    scale_eqn: the equation of the product with `scale`; None multiplies each
      output with its scale.
    zp_eqn: the equation of the product of inputs and `zp` that is subtracted;
      None is that of `compute_offset`.
    swap_xw: whether the equation is 'weight,inputs->outputs'.
  """
  if swap_xw:
    weight, inputs, outputs = split_equation(eqn)
    eqn = f'{inputs},{weight}->{outputs}'
  eqn = without_ellipsis(eqn, x, w)
  inputs, weight, outputs = split_equation(eqn)
  if jnp.issubdtype(w.dtype, jnp.floating) and w.dtype.itemsize == 1:
    w = w.astype(jnp.bfloat16)
  floats = _as_floats(eqn, x, scale_act, zp_act)
  if zp_act is not None:
    kept = ''.join(c for c in weight if c in outputs)
    whole = w * _spread(scale, kept, weight)
    whole = whole if zp is None else whole - _spread(zp, kept, weight)
    return jnp.einsum(eqn, floats, whole)
  product = _integer_or_mixed_product(eqn, x, w)
  if scale_act is not None and scale_act.ndim:
    kept = ''.join(c for c in inputs if c in outputs)
    product = product * _spread(scale_act, kept, outputs)
  elif scale_act is not None:
    scale = scale * scale_act
  if scale_eqn is None:
    kept = ''.join(c for c in weight if c in outputs)
    result = product * _spread(scale, kept, outputs)
  else:
    result = jnp.einsum(scale_eqn, product, scale)
  if zp is None:
    return result
  if zp_eqn is None:
    return result - compute_offset(eqn, floats, zp)
  return result - jnp.einsum(zp_eqn, floats, zp)


def _integer_or_mixed_product(
  eqn: str, x: jax.Array, w: jax.Array
) -> jax.Array:
  """Returns the product, int32 if both are integers."""
  if x.dtype in INT_TYPES and w.dtype in INT_TYPES:
    dtype = get_smallest_matching_dtype(x, w)
    return jnp.einsum(
      eqn, x.astype(dtype), w.astype(dtype), preferred_element_type=jnp.int32
    )
  # Integers of 4 bits are not promoted to floats.
  x, w = (y.astype(jnp.int8) if y.dtype in INT4_TYPES else y for y in (x, w))
  return jnp.einsum(eqn, x, w)


def _as_floats(eqn: str, x, scale, zero) -> jax.Array:
  """Returns the inputs of a product as floats."""
  inputs, _, outputs = split_equation(eqn)
  kept = ''.join(c for c in inputs if c in outputs)
  if scale is not None:
    x = x * _spread(scale, kept, inputs)
  return x if zero is None else x - _spread(zero, kept, inputs)


def _spread(x: jax.Array, letters: str, target: str) -> jax.Array:
  """Returns `x` with its dimensions in `target`'s order, others of size 1."""
  if x.ndim == 0:
    return x
  order = [letters.index(c) for c in target if c in letters]
  missing = [i for i, c in enumerate(target) if c not in letters]
  return jnp.expand_dims(jnp.transpose(x, order), missing)


def aqt_einsum(
  eqn: str,
  lhs: jax.Array,
  rhs: jax.Array,
  *,
  lhs_quantizer: Any,
  rhs_quantizer: Any,
  scale_eqn: str | None = None,
  zp_eqn: str | None = None,
) -> jax.Array:
  """Multiplies two arrays that are rounded first, for training.

  Args:
    eqn: 'inputs,weight->outputs'.
    lhs: the inputs, floats.
    rhs: the weight, or another array of floats.
    lhs_quantizer: the `TensorQuantizer` of the inputs.
    rhs_quantizer: that of the weight.
    scale_eqn: see `einsum`; then the inputs are not rounded.
    zp_eqn: likewise.

  Raises:
    UserError: the inputs are rounded, and the weight has zero points, blocks,
      or an equation of its scales.
  """
  eqn = without_ellipsis(eqn, lhs, rhs)
  lhs_letters, rhs_letters, outputs = split_equation(eqn)
  lhs_dims, rhs_dims = (
    [i for i, c in enumerate(x) if c not in outputs]
    for x in (lhs_letters, rhs_letters)
  )
  sub_channel_count = getattr(rhs_quantizer, 'sub_channels', None)
  has_equations = scale_eqn is not None or zp_eqn is not None
  if has_equations or sub_channel_count is not None:
    _check_not_rounded(lhs_quantizer)
  if sub_channel_count is not None:
    logging.warning('sub_channels is deprecated; use block_size')
    weight = _rounded_in_blocks(rhs, rhs_dims, rhs_quantizer)
    return jnp.einsum(eqn, lhs, weight)
  rhs, scale, zero = rhs_quantizer.quantize(
    rhs, rhs_dims, squeeze_scale=has_equations, quantized_dtype=rhs.dtype
  )
  if zero is not None:
    _check_not_rounded(lhs_quantizer)
  if not has_equations:
    lhs, lhs_scale, _ = lhs_quantizer.quantize(
      lhs, lhs_dims, squeeze_scale=False, quantized_dtype=lhs.dtype
    )
    scale = jnp.einsum(eqn, lhs_scale, scale)
  product = jnp.einsum(eqn, lhs, rhs)
  if scale_eqn is None:
    product = product * scale
  else:
    product = jnp.einsum(scale_eqn, product, scale)
  if zero is None:
    return product
  if zp_eqn is None:
    axis = None if has_equations else tuple(rhs_dims)
    zero = zero if axis is None else jnp.squeeze(zero, axis)
    return product - compute_offset(eqn, lhs, zero)
  return product - jnp.einsum(zp_eqn, lhs, zero)


def _check_not_rounded(quantizer: Any):
  if getattr(quantizer, 'precision', None) is not None:
    raise errors.UserError(
      'inputs that are rounded, too, are not supported with zero points,'
      ' sub_channels or equations of scales; leave act_params None'
    )


def _rounded_in_blocks(weight: jax.Array, dims, quantizer: Any) -> jax.Array:
  """Returns a weight after rounding with a scale for each sub-channel."""
  shape = sub_channels.compute_shape_with_subchannels(
    quantizer.sub_channels, weight.shape, dims
  )
  values, scale, zero = quantizer.quantize(
    weight.reshape(shape),
    dims,
    squeeze_scale=False,
    quantized_dtype=weight.dtype,
  )
  return quantizer.dequantize(values, scale, dims, zero).reshape(weight.shape)
