"""Conditional computation within a step."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat.layer_core import sharding


def either(
  condition: jax.Array | bool,
  one: Callable[[], Any],
  other: Callable[[], Any] | None = None,
) -> Any:
  """Returns `one()` if a condition is true, else `other()`.

  On CPUs only one branch is computed, so that donated arrays can be updated in
  place, which a select would prevent. On accelerators, where a branch makes
  the host wait, both are computed and one is selected.

  Args:
    condition: [], bool.
    one: returns a tree of arrays.
    other: returns a tree of the same structure, shapes and dtypes; None for
      zeros.
  """
  if other is None:
    made = jax.eval_shape(one)
    if not jax.tree.leaves(made):
      return made
    other = functools.partial(jax.tree.map, jnp.zeros_like, made)
  if sharding.platform() == 'cpu':
    return jax.lax.cond(condition, one, other)
  return select(condition, one(), other())


def select(condition: jax.Array, new: Any, old: Any) -> Any:
  """Returns one of two trees, leaf by leaf."""
  return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def after(norms: dict[str, jax.Array], arrays: Any) -> Any:
  """Returns arrays that, on CPUs, depend on norms.

  Computations on the result then run after the branch that computes the norms,
  and can overwrite its operands in place. Without the dependency XLA copies
  them. Accelerators need no branch: arrays are returned as they are.

  Args:
    norms: each [].
    arrays: a tree of arrays.
  """
  if not norms or sharding.platform() != 'cpu':
    return arrays
  # Never true, which the compiler does not know.
  is_negative = sum(norms.values()) < 0
  return jax.tree.map(
    lambda x: jnp.where(is_negative, jnp.zeros_like(x), x), arrays
  )
