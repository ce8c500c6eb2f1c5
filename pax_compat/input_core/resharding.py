"""Splitting batches over devices and merging those of all hosts."""

from typing import Any

import jax

from pax_compat import errors
from pax_compat.layer_core import sharding


def split_shape(x: Any, count: int, *, name: str) -> tuple[int, ...]:
  """Returns the shape [count, B / count, ...] for a leaf [B, ...].

  Args:
    x: the leaf.
    count: number of pieces.
    name: the name of the input in messages.

  Raises:
    UserError: B is not a multiple of `count`.
  """
  if not x.ndim or x.shape[0] % count:
    raise errors.UserError(
      f'{name}: a leaf of a batch has the shape {x.shape}; expected its first'
      f' dimension to be a multiple of {count}'
    )
  return (count, x.shape[0] // count, *x.shape[1:])


def for_pmap(arrays: Any, *, name: str) -> Any:
  """Returns leaves [devices, B / devices, ...] for leaves [B, ...]."""
  count = jax.local_device_count()
  return jax.tree.map(
    lambda x: x.reshape(split_shape(x, count, name=name)), arrays
  )


def for_spmd(
  arrays: Any, global_mesh: jax.sharding.Mesh, pspecs: Any, *, num_hosts: int
) -> Any:
  """Returns leaves [B * num_hosts, ...] on devices for leaves [B, ...]."""

  def put(x, spec):
    split = jax.sharding.NamedSharding(global_mesh, spec)
    return sharding.array_of_hosts(x, split, num_hosts)

  return jax.tree.map(put, arrays, pspecs)
