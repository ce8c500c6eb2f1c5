"""Work that only some steps need."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def either(
  condition: jax.Array | bool,
  one: Callable[[], Any],
  other: Callable[[], Any] | None = None,
) -> Any:
  """Returns `one()` where a condition holds, else `other()`.

  On CPUs only what is wanted is computed; so arrays that are donated can be
  updated in place, which a selection of new or old prevents there. On
  accelerators, where a branch makes the host wait, one of both is selected.

  Args:
    condition: [], bool.
    one: makes a tree of arrays.
    other: makes one of the same structure, shapes and dtypes; None for zeros.
  """
  if other is None:
    made = jax.eval_shape(one)
    if not jax.tree.leaves(made):
      return made
    other = functools.partial(_zeros, made)
  if jax.default_backend() == 'cpu':
    return jax.lax.cond(condition, one, other)
  return jax.tree.map(
    lambda new, old: jnp.where(condition, new, old), one(), other()
  )


def after(norms: dict[str, jax.Array], arrays: Any) -> Any:
  """Returns arrays that, on CPUs, are not known before some norms are.

  So what is made of the arrays comes after the branch that makes the norms, and
  can overwrite what it measures, which would be copied otherwise. On
  accelerators there is no branch, and both are made of the same numbers.

  Args:
    norms: each [].
    arrays: a tree of arrays.
  """
  if not norms or jax.default_backend() != 'cpu':
    return arrays
  # It never is, which the compiler does not know.
  is_negative = sum(norms.values()) < 0
  return jax.tree.map(
    lambda x: jnp.where(is_negative, jnp.zeros_like(x), x), arrays
  )


def _zeros(shapes: Any) -> Any:
  return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
