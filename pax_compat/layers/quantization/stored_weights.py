"""How the integers of a quantized weight are stored."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.layer_core.weight_hparams import Quantized
from pax_compat.layers.quantization import rounding, sub_channels, utils
from pax_compat.layers.quantization.quantization_hparams import (
  WeightQuantizationParams,
)
from pax_compat.layers.quantization.tensor_quantizers import (
  create_tensor_quantizer,
)

SCALE = '_quantized_scale'
ZERO_POINT = '_quantized_zp'


@dataclasses.dataclass(frozen=True)
class Layout:
  """Dimensions of integers, which may be in blocks.

  Attributes:
    shape: the shape before packing.
    dims: dimensions that share a scale.
    pack_dim: dimension along which values are packed, if they are.
    block_dim: the dimension of blocks, before that within a block; None if
      there is one block.
  """

  shape: tuple[int, ...]
  dims: tuple[int, ...]
  pack_dim: int
  block_dim: int | None


def layout(stored: Quantized) -> Layout:
  """Returns the layout of a quantized weight."""
  shape, dims = sub_channels.get_sub_channel_shape(
    stored.shape, stored.params.block_size, stored.dims
  )
  block_dim = None
  pack_dim = stored.pack_dim
  if len(shape) > len(stored.shape):
    pairs = zip(shape, stored.shape, strict=False)
    block_dim = next(i for i, (new, old) in enumerate(pairs) if new != old)
    pack_dim += pack_dim >= block_dim
  return Layout(tuple(shape), tuple(dims), pack_dim, block_dim)


def stored_dtype(params: WeightQuantizationParams) -> Any:
  """Returns the integer type that a weight is stored in."""
  if params.is_packed:
    return params.int4_packed_weights_container_dtype
  return params.dtype


def stored_hparams(
  weight: WeightHParams, stored: Quantized
) -> tuple[WeightHParams, WeightHParams]:
  """Returns the metadata of the integers and of the scales of a weight.

  Args:
    weight: metadata of the floats.
    stored: how they are quantized.
  """
  found = layout(stored)
  shape = list(found.shape)
  if stored.params.is_packed:
    count = jnp.iinfo(stored_dtype(stored.params)).bits // 4
    shape = utils.get_packed_shape(shape, found.pack_dim, count)
  split = weight.tensor_split_dims_mapping
  if split is not None and found.block_dim is not None:
    split = list(split)
    split.insert(found.block_dim + 1, None)
  kept = [i for i in range(len(shape)) if i not in found.dims]
  integers = dataclasses.replace(
    weight,
    shape=shape,
    dtype=stored_dtype(stored.params),
    init=WeightInit.Constant(0),
    fan_in_axes=None,
    fan_out_axes=None,
    tensor_split_dims_mapping=split,
    quantized=stored,
  )
  scales = WeightHParams(
    [found.shape[i] for i in kept],
    WeightInit.Constant(1.0),
    mesh_shape=weight.mesh_shape,
    tensor_split_dims_mapping=split and [split[i] for i in kept],
  )
  return integers, scales


def unpacked(value: jax.Array, params: WeightQuantizationParams, pack_dim: int):
  """Returns stored integers as int8 or uint8."""
  unsigned = jnp.issubdtype(params.dtype, jnp.unsignedinteger)
  dtype = jnp.uint8 if unsigned else jnp.int8
  if params.is_packed:
    return utils.unpack_4bit(value, pack_dim, dtype)
  return value.astype(dtype)


def quantized_weight(
  name: str, value: jax.Array, stored: Quantized, dtype, stacked: int = 0
) -> dict[str, jax.Array]:
  """Returns the integers, scales and zero points of a weight, by name.

  Args:
    name: its name.
    value: the floats, after `stacked` leading dimensions of repeated layers.
    stored: how it is stored.
    dtype: dtype of the scales.
    stacked: number of leading dimensions.
  """
  params, found = stored.params, layout(stored)
  dims = [i + stacked for i in found.dims]
  value = value.reshape(*value.shape[:stacked], *found.shape).astype(dtype)
  if stored.is_aqt:
    quantizer = create_tensor_quantizer('weight_quantizer', params)
    values, scale, zero = quantizer.Instantiate().apply(
      {}, value, dims, False, jnp.int8, method='quantize'
    )
  else:
    values, scale, zero = rounding.reduce_precision(
      value,
      dims,
      bits=params.precision,
      percentile=params.clipping_coeff,
      use_symmetric=params.use_symmetric,
      quant_method=params.quant_method,
    )
  if params.is_packed:
    values = utils.pack_4bit(
      values.astype(jnp.int8), found.pack_dim + stacked, stored_dtype(params)
    )
  arrays = {name: values.astype(stored_dtype(params))}
  arrays[name + SCALE] = jnp.squeeze(scale, tuple(dims))
  if zero is not None:
    arrays[name + ZERO_POINT] = jnp.squeeze(zero, tuple(dims))
  return arrays
