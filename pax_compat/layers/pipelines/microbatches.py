"""Splitting batches into microbatches.

Shapes: B batch, M microbatches of B / M examples.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors


def number(where: str, batch: int, number: int | None, size: int | None) -> int:
  """Returns the number of microbatches M.

  Args:
    where: prefix of error messages.
    batch: B.
    number: M; None to compute it from `size`.
    size: examples per microbatch; None to compute it from `number`.

  Raises:
    UserError: neither divides the batch, or they contradict each other.
  """
  divisor = size if number is None else number
  field = 'microbatch_size' if number is None else 'num_microbatches'
  if divisor < 1 or batch % divisor:
    raise errors.UserError(
      f'{where}.{field} is {divisor}, but a batch has {batch} examples;'
      ' expected a divisor of it'
    )
  number = batch // size if number is None else number
  if size is not None and number * size != batch:
    raise errors.UserError(
      f'{where} has num_microbatches={number} and microbatch_size={size}, but a'
      f' batch has {batch} examples; expected one of the two only'
    )
  return number


def split(tree: Any, number: int, chunks: int = 1) -> Any:
  """Splits arrays [B, ...] into microbatches, [M, B / M, ...].

  Microbatch m has the examples m, m + M, ..., so that the sharding of a batch
  over devices is kept:

  >>> split(np.arange(6), 3).tolist()
  [[0, 3], [1, 4], [2, 5]]

  With `chunks`, consecutive microbatches are of consecutive parts of a batch,
  which may be on different devices:

  >>> split(np.arange(8), 4, chunks=2).tolist()
  [[0, 2], [4, 6], [1, 3], [5, 7]]

  Args:
    tree: arrays [B, ...].
    number: M.
    chunks: number of parts, a divisor of M.
  """

  def of(x):
    x = x.reshape(chunks, -1, number // chunks, *x.shape[1:])
    x = jnp.moveaxis(x, 2, 0)  # [M / chunks, chunks, B / M, ...]
    return x.reshape(number, -1, *x.shape[3:])

  return jax.tree.map(of, tree)


def join(tree: Any, chunks: int = 1) -> Any:
  """Joins microbatches [M, B / M, ...] to [B, ...]: the inverse of `split`."""

  def of(x):
    x = jnp.moveaxis(x.reshape(-1, chunks, *x.shape[1:]), 0, 2)
    return x.reshape(-1, *x.shape[3:])

  return jax.tree.map(of, tree)


def get(tree: Any, index: jax.Array) -> Any:
  """Returns element `index` [] of arrays [N, ...]."""
  return jax.tree.map(
    lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), tree
  )


class PerMicrobatch:
  """Arguments that are split by microbatch, or the same for all.

  An array [B, ...] is split. An array [1, ...] or [], and anything that is not
  an array, is the same for all microbatches.
  """

  def __init__(
    self,
    where: str,
    tree: Any,
    batch: int,
    number: int | None,
    chunks: int = 1,
  ):
    """Splits the arrays of a tree.

    Args:
      where: prefix of error messages.
      tree: of arrays and other values.
      batch: B; or M, if `number` is None.
      number: M; None if the arrays are split already.
      chunks: see `split`.

    Raises:
      UserError: an array's first dimension is neither B nor 1.
    """
    leaves, self._structure = jax.tree.flatten(tree)
    self._is_split = [_is_of_batch(where, x, batch) for x in leaves]
    self._leaves = [
      split(x, number, chunks) if is_split and number else x
      for x, is_split in zip(leaves, self._is_split, strict=True)
    ]

  def get(self, index: jax.Array | int) -> Any:
    """Returns the tree of a microbatch."""
    return self._structure.unflatten(
      jax.lax.dynamic_index_in_dim(x, index, keepdims=False) if is_split else x
      for x, is_split in zip(self._leaves, self._is_split, strict=True)
    )


def _is_of_batch(where: str, x: Any, batch: int) -> bool:
  if not isinstance(x, jax.Array | np.ndarray) or not x.ndim:
    return False
  if x.shape[0] not in (1, batch):
    raise errors.UserError(
      f'{where}: an argument has the shape {list(x.shape)}; expected'
      f' {batch} examples as the inputs have, or 1 for all of them'
    )
  return x.shape[0] == batch
