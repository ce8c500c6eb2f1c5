"""Functions of Pax's `sparsity` that are another spelling here.

Pax has a faster function for some offsets; here one function has all of them.
"""

import jax
import jax.numpy as jnp
from jax import dtypes

from pax_compat.layers.quantization.sparsity import sparsity
from pax_compat.layers.quantization.sparsity.sparsity_hparams import (
  SparsityOrder,
)

get_sparsity_mask_optimized_for_offset = sparsity.get_sparsity_mask


def prune_inputs_n_m(
  inputs: jax.Array,
  *,
  n: int,
  m: int,
  order: str = SparsityOrder.C,
  offset: int = 0,
) -> jax.Array:
  """Returns weights with 0 for all but N of each group of M."""
  mask = sparsity.get_sparsity_mask(inputs, n, m, order=order, offset=offset)
  return sparsity.apply_sparsity(inputs, mask)


def dtype_bitwidth(dtype) -> int:
  """Returns the number of bits of a value of a dtype."""
  return dtypes.itemsize_bits(dtype)


def is_optimized_offset(
  order: str, offset: int, input_dtype=jnp.float32
) -> bool:
  """Returns whether Pax has a faster function for an offset.

  It is a multiple of the values in a tile of a TPU: 8 rows of 32 bits each for
  the order 'C', 128 columns for 'R'.
  """
  tile = 128 if order == SparsityOrder.R else 256 // dtype_bitwidth(input_dtype)
  return offset > 0 and offset % tile == 0
