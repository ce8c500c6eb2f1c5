"""Layers whose gradients carry the norms of the gradients of examples.

With Pax's protocol, weights are `ParamWithAux`. In the gradient of a loss that
is a mean over the rows of a batch, `param` is the gradient of the weight, where
each row counts times its entry of `aux`; and `aux` is, for each row, the square
of the norm of that. Of several weights of a layer, the first one has the
squares of all, and the others have zeros.

Shapes: B rows.
"""

import functools
from collections.abc import Callable
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer
from pax_compat.learners.gradients import ghost_clipping


class ParamWithAux(flax.struct.PyTreeNode):
  """A weight with factors of rows, or a gradient with squares of norms.

  Attributes:
    param: the weight, or its gradient.
    aux: [B].
  """

  param: Any
  aux: Any = None

  @property
  def dtype(self) -> Any:
    """dtype of `param`."""
    return self.param.dtype

  def astype(self, dtype: Any) -> Self:
    """Returns it with both arrays cast."""
    return jax.tree.map(lambda x: x.astype(dtype), self)

  def transpose(self) -> Self:
    """Returns it with `param` transposed."""
    return self.replace(param=self.param.transpose())


def _leaves(params: Any) -> list[Any]:
  return jax.tree.leaves(params, is_leaf=_is_with_aux)


def _is_with_aux(x: Any) -> bool:
  return isinstance(x, ParamWithAux)


def get_param(params: Any) -> Any:
  """Returns a tree with the arrays of weights."""
  return jax.tree.map(
    lambda x: x.param if _is_with_aux(x) else x, params, is_leaf=_is_with_aux
  )


def get_aux(params: Any) -> jax.Array | None:
  """Returns the factors [B] of the first weight; None if it has none."""
  leaves = _leaves(params)
  return leaves[0].aux if leaves and _is_with_aux(leaves[0]) else None


def call(
  layer: nn.Module, plain: Callable[..., Any], method: str, *args, **kwargs
) -> Any:
  """Calls a layer, by the protocol if its weights are `ParamWithAux`.

  Args:
    layer: the layer, bound but not set up.
    plain: what is called for other weights.
    method: its name.
    *args: its arguments. Arrays with B as their first dimension are split into
      rows for the norms, others are those of each row.
    **kwargs: likewise.
  """
  variables = {} if layer.scope is None else dict(layer.variables)
  scales = get_aux(variables.get(base_layer.PARAMS, {}))
  if scales is None:
    return plain(*args, **kwargs)
  leaves, structure = jax.tree.flatten((args, kwargs))
  arrays = [isinstance(x, jax.Array | np.ndarray) for x in leaves]
  unbound = layer.clone(parent=None, name=None)

  def fn(params, *given):
    given = iter(given)
    own, named = structure.unflatten(
      next(given) if is_array else x
      for x, is_array in zip(leaves, arrays, strict=True)
    )
    return unbound.apply(
      {base_layer.PARAMS: params}, *own, method=method, **named
    )

  given = [x for x, is_array in zip(leaves, arrays, strict=True) if is_array]
  params = get_param(variables[base_layer.PARAMS])
  return _with_norms(fn, params, scales, *given)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_norms(fn, params, scales, *args):
  del scales
  return fn(params, *args)


def _forward(fn, params, scales, *args):
  return fn(params, *args), (params, scales, args)


def _backward(fn, saved, cotangent):
  params, scales, args = saved
  num = len(scales)
  scaled = jax.tree.map(
    lambda g: jnp.einsum('b,b...->b...', scales, g), cotangent
  )
  _, pull = jax.vjp(fn, params, *args)
  split = [0 if x.ndim and len(x) == num else None for x in args]

  def square(g, *own):
    own = [
      x if axis is None else x[None] for x, axis in zip(own, split, strict=True)
    ]

    def loss(params, *own):
      outputs = fn(params, *own)
      products = jax.tree.map(lambda x, g: jnp.vdot(x, g), outputs, g)
      return sum(jax.tree.leaves(products))

    made = ghost_clipping.plan(loss, params, *own)
    return jax.grad(ghost_clipping.with_norm(loss, made))(0.0, params, *own)

  squares = jax.vmap(square, in_axes=(0, *split))(scaled, *args)
  # The loss is a mean: B times a row's share of it is the loss of the row.
  return pull(scaled)[0], num**2 * squares, *pull(cotangent)[1:]


_with_norms.defvjp(_forward, _backward)
