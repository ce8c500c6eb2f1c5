"""Gradients of weights that a train step replaces by them.

The gradients of weights of OVERWRITE_WITH_GRADIENT are statistics of the step,
such as largest values. Where a loop runs a layer on parts of a batch, JAX adds
up the gradients of its runs; of statistics that must be the largest one. So a
loop gives each run a copy of these weights, made by `copies`.
"""

import functools
from collections.abc import Collection
from contextvars import ContextVar

import jax
import jax.numpy as jnp

# Paths of these weights in the model whose gradients are being computed; None
# if they are unknown, as outside of train steps.
PATHS: ContextVar[Collection[str] | None] = ContextVar('paths', default=None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def copies(weight: jax.Array, number: int) -> jax.Array:
  """Returns copies [number, ...]; the largest gradient is the weight's.

  >>> jax.grad(lambda w: copies(w, 3) @ jnp.array([1.0, 7.0, 2.0]))(0.0)
  Array(7., dtype=float32, weak_type=True)

  Args:
    weight: an array.
    number: of copies.
  """
  return jnp.broadcast_to(weight, [number, *weight.shape])


copies.defvjp(
  lambda weight, number: (copies(weight, number), None),
  lambda number, _, gradients: (jnp.max(gradients, axis=0),),
)
