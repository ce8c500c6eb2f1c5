"""Batches cut into micro-batches.

Shapes: B batch, M micro-batches, B = M times the examples of each.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors


def number(where: str, batch: int, number: int | None, size: int | None) -> int:
  """Returns how many micro-batches a batch is cut into.

  Args:
    where: begins the messages of errors.
    batch: B.
    number: M; None for as many as `size` makes.
    size: how many examples each has; None for as many as `number` makes.

  Raises:
    UserError: neither divides the batch, or they contradict one another.
  """
  parts = size if number is None else number
  field = 'microbatch_size' if number is None else 'num_microbatches'
  if parts < 1 or batch % parts:
    raise errors.UserError(
      f'{where}.{field} is {parts}, but a batch has {batch} examples; expected'
      ' a divisor of it'
    )
  number = batch // size if number is None else number
  if size is not None and number * size != batch:
    raise errors.UserError(
      f'{where} has num_microbatches={number} and microbatch_size={size}, but a'
      f' batch has {batch} examples; expected one of the two only'
    )
  return number


def split(tree: Any, number: int) -> Any:
  """Returns arrays [B, ...] as [M, B / M, ...].

  Micro-batch m has the examples m, m + M, and so on, so that a batch which is
  split over devices stays split as it is.
  """
  return jax.tree.map(
    lambda x: jnp.swapaxes(x.reshape(-1, number, *x.shape[1:]), 0, 1), tree
  )


def join(tree: Any) -> Any:
  """Returns arrays [M, B / M, ...] as [B, ...]: the inverse of `split`."""
  return jax.tree.map(
    lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), tree
  )


class PerMicrobatch:
  """Values of which each micro-batch has its own part, or all the same.

  An array whose first dimension is the batch's is cut; one whose first
  dimension is 1, that has no dimensions, or is no array, is the same for all.
  """

  def __init__(self, where: str, tree: Any, batch: int, number: int | None):
    """Cuts the arrays of a tree.

    Args:
      where: begins the messages of errors.
      tree: of arrays, and of other things.
      batch: B; or M, where `number` is None.
      number: M; None where the arrays are cut already.

    Raises:
      UserError: an array's first dimension is not the batch's.
    """
    leaves, self._structure = jax.tree.flatten(tree)
    self._is_cut = [_is_of_batch(where, x, batch) for x in leaves]
    self._leaves = [
      split(x, number) if cut and number else x
      for x, cut in zip(leaves, self._is_cut, strict=True)
    ]

  def get(self, index: jax.Array | int) -> Any:
    """Returns the tree of a micro-batch."""
    return self._structure.unflatten(
      jax.lax.dynamic_index_in_dim(x, index, keepdims=False) if cut else x
      for x, cut in zip(self._leaves, self._is_cut, strict=True)
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
