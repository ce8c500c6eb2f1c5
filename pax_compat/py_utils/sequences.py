"""Sequences, paddings and masks as arrays.

Shapes: B batch, T time, D depth.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors


def l2_normalize(
  x: jax.Array, axis: int | Sequence[int] = -1, epsilon: float = 1e-12
) -> jax.Array:
  """Returns `x` scaled to the Euclidean length 1 along `axis`."""
  squares = jnp.sum(jnp.square(x), axis=axis, keepdims=True)
  return x / jnp.sqrt(squares + epsilon)


def get_large_negative_number(dtype: Any) -> jax.Array:
  """Returns [], 0.7 of the most negative number of `dtype`.

  Raises:
    UserError: `dtype` is neither a real number nor an integer type.
  """
  dtype = jnp.zeros([], dtype).dtype
  if jnp.issubdtype(dtype, jnp.inexact):
    largest = jnp.finfo(dtype).max
  elif jnp.issubdtype(dtype, jnp.integer):
    largest = jnp.iinfo(dtype).max
  else:
    raise errors.UserError(
      f'get_large_negative_number: the dtype is {dtype}; expected a real or an'
      ' integer dtype'
    )
  return jnp.asarray(-0.7 * largest, dtype)


def apply_mask_to_logits(logits: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns logits with a large negative number wherever a mask has one.

  Args:
    logits: any shape.
    mask: broadcasts to `logits`: 0, or `get_large_negative_number`.
  """
  lowest = get_large_negative_number(logits.dtype)
  return jnp.where(mask >= 0.5 * lowest, logits, lowest)


def sequence_mask(
  lengths: jax.Array | Sequence[int], maxlen: int, dtype: Any = jnp.bool_
) -> jax.Array:
  """Returns [..., maxlen] with 1 below each of `lengths` [...]."""
  lengths = jnp.asarray(lengths)[..., jnp.newaxis]
  return (jnp.arange(maxlen) < lengths).astype(dtype)


def sequence_paddings(
  lengths: jax.Array | Sequence[int], maxlen: int, dtype: Any = jnp.float32
) -> jax.Array:
  """Returns [..., maxlen] with 1 from each of `lengths` [...] on."""
  return (~sequence_mask(lengths, maxlen)).astype(dtype)


@jax.vmap
def flip_sequence(inputs: jax.Array, lengths: jax.Array) -> jax.Array:
  """Returns sequences [B, T, ...] with their first `lengths` [B] reversed.

  What follows the valid positions is reversed, too.
  """
  longest = inputs.shape[0]
  return jnp.flip(jnp.roll(inputs, longest - lengths, axis=0), axis=0)


def concat_sequences_with_padding(
  input0: jax.Array,
  paddings0: jax.Array,
  input1: jax.Array,
  paddings1: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Appends sequences to the valid positions of others.

  Args:
    input0: [B, T0, D].
    paddings0: [B, T0].
    input1: [B, T1, D].
    paddings1: [B, T1].

  Returns:
    [B, T0 + T1, D] and its paddings [B, T0 + T1]. The padded positions of
    `input0` come last.

  Raises:
    UserError: the shapes do not fit.
  """
  if (input0.shape[0], input0.shape[2]) != (input1.shape[0], input1.shape[2]):
    raise errors.UserError(
      f'concat_sequences_with_padding: inputs of shape {input0.shape} and'
      f' {input1.shape}; expected the same batch and depth'
    )
  for x, paddings in ((input0, paddings0), (input1, paddings1)):
    if x.shape[:2] != paddings.shape:
      raise errors.UserError(
        f'concat_sequences_with_padding: an input of shape {x.shape} has'
        f' paddings of shape {paddings.shape}'
      )
  valid0, valid1 = (
    (1 - p).sum(-1).astype(jnp.int32) for p in (paddings0, paddings1)
  )
  both = jnp.concatenate([input0, input1], axis=1)
  length0, length1 = paddings0.shape[1], paddings1.shape[1]
  # Where each output position comes from: valid part, `input1`, then the rest.
  at = jnp.arange(length0 + length1)[jnp.newaxis]
  valid = valid0[:, jnp.newaxis]
  source = jnp.where(
    at < valid,
    at,
    jnp.where(at < valid + length1, at - valid + length0, at - length1),
  )
  joined = jnp.take_along_axis(both, source[..., jnp.newaxis], axis=1)
  paddings = sequence_paddings(
    valid0 + valid1, length0 + length1, paddings0.dtype
  )
  return joined, paddings


def apply_padding(
  inputs: jax.Array,
  padding: jax.Array,
  pad_value: jax.Array | None = None,
  use_select: bool = True,
  axis: int | None = None,
) -> jax.Array:
  """Returns `inputs` with `pad_value` where `padding` is above 0.

  Args:
    inputs: any shape.
    padding: broadcasts to `inputs`: 0 or 1, or booleans.
    pad_value: [], of the dtype of `inputs`; None for 0.
    use_select: False multiplies by 1 - padding instead of selecting; then NaNs
      of padded positions stay.
    axis: the first dimension of `inputs` from which those of `padding` are
      matched; None matches the last ones.
  """
  if axis is not None:
    tail = padding.shape[axis:][: inputs.ndim - axis]
    missing = max(inputs.ndim - axis - len(padding.shape[axis:]), 0)
    padding = padding.reshape(padding.shape[:axis] + tail + (1,) * missing)
  if use_select:
    where = padding if padding.dtype == jnp.bool_ else padding > 0
    filled = 0 if pad_value is None else pad_value
    return jnp.where(where, jnp.asarray(filled, inputs.dtype), inputs)
  kept = (1.0 - padding.astype(jnp.float32)).astype(inputs.dtype)
  result = inputs * kept
  if pad_value is not None:
    result += pad_value * padding.astype(pad_value.dtype)
  return result


def pad_or_trim_to(
  x: jax.Array | None, shape: Sequence[int], pad_val: float = 0
) -> jax.Array | None:
  """Returns `x` padded with `pad_val` and cut at the end to `shape`.

  Raises:
    UserError: `shape` has another rank.
  """
  if x is None:
    return None
  if x.ndim != len(shape):
    raise errors.UserError(
      f'pad_or_trim_to: an array of shape {x.shape} cannot be made {shape};'
      ' expected the same number of dimensions'
    )
  more = [
    (0, max(new - old, 0)) for old, new in zip(x.shape, shape, strict=True)
  ]
  padded = jnp.pad(x, more, constant_values=pad_val)
  return padded[tuple(slice(size) for size in shape)]


def append_eos(
  x: jax.Array,
  paddings: jax.Array,
  eos_id: int,
  extend_if_overflow: bool = True,
) -> tuple[jax.Array, jax.Array]:
  """Makes each sequence end with `eos_id`. Not for use in a compiled function.

  Args:
    x: [B, T], token ids.
    paddings: [B, T].
    eos_id: id of the end of a sequence.
    extend_if_overflow: whether T grows by one if a full sequence does not end
      with `eos_id`; else such a sequence stays as it is.

  Returns:
    The sequences, with `eos_id` at padded positions, and their paddings.
  """
  batch, length = x.shape
  valid = (1 - paddings).astype(jnp.int32).sum(-1)
  last = jnp.take_along_axis(x, jnp.maximum(valid - 1, 0)[:, None], axis=1)
  valid = valid + ((valid == 0) | (last[:, 0] != eos_id)).astype(jnp.int32)
  longer = jnp.concatenate([x, jnp.full([batch, 1], eos_id, x.dtype)], axis=1)
  # The last valid position is an EOS now, if it was not before.
  at = jnp.arange(length + 1)[jnp.newaxis]
  ids = jnp.where(at >= valid[:, None] - 1, eos_id, longer).astype(x.dtype)
  grows = extend_if_overflow and bool((valid > length).any())
  size = length + grows
  padded = sequence_paddings(valid, length + 1, paddings.dtype)
  return ids[:, :size], padded[:, :size]


def tree_unstack(tree: Any, axis: int) -> Sequence[Any]:
  """Returns the trees of the slices of all leaves along `axis`.

  Raises:
    UserError: a leaf is not an array, or the leaves differ in size.
  """
  leaves = jax.tree.leaves(tree)
  if not leaves:
    return []
  if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
    raise errors.UserError('tree_unstack: expected arrays as leaves')
  if all(leaf.ndim == 0 for leaf in leaves):
    return [tree]
  sizes = {leaf.shape[axis] if leaf.ndim > axis else None for leaf in leaves}
  if len(sizes) > 1 or None in sizes:
    raise errors.UserError(
      f'tree_unstack: leaves of sizes {sizes} along axis {axis}; expected one'
      ' size'
    )
  [size] = sizes
  return [
    jax.tree.map(lambda x, i=i: x.take(i, axis), tree) for i in range(size)
  ]


def reshard(array: jax.Array) -> np.ndarray:
  """Returns [B, ...] as [devices, B / devices, ...], for local devices."""
  return reshape_with_outer_batch_size(array, jax.local_device_count())


def unshard(array: jax.Array) -> np.ndarray:
  """Returns [devices, N, ...] as [devices * N, ...]."""
  return np.reshape(array, (-1, *array.shape[2:]))


combine_inner_and_outer_batches = unshard


def reshape_with_outer_batch_size(
  array: jax.Array, outer_bs: int
) -> np.ndarray:
  """Returns [B, ...] as [outer_bs, B / outer_bs, ...].

  Raises:
    UserError: `outer_bs` does not divide B.
  """
  batch = array.shape[0]
  if not batch or batch % outer_bs:
    raise errors.UserError(
      f'a batch of {batch} rows cannot be split in {outer_bs} equal parts'
    )
  return np.reshape(array, (outer_bs, batch // outer_bs, *array.shape[1:]))
