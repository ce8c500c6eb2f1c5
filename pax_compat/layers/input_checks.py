"""Checks of the inputs of layers, with readable error messages."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import errors


def check_last_dim(layer: nn.Module, field: str, inputs: jax.Array):
  """Raises a UserError unless the last dimension of the inputs is a field's.

  Without the check, a last dimension of size 1 would be broadcast silently.

  Args:
    layer: the layer that is called.
    field: name of the layer's field with the number of features, D.
    inputs: [..., D].
  """
  dims = getattr(layer, field)
  if jnp.shape(inputs)[-1:] != (dims,):
    raise errors.UserError(
      f'{_path(layer)}.{field} is {dims}, but the inputs have the shape'
      f' {list(jnp.shape(inputs))}; expected a last dimension of {dims}'
    )


def check_integers(layer: nn.Module, ids: jax.Array):
  """Raises a UserError unless `ids` [...] are integers."""
  dtype = jnp.result_type(ids)
  if not jnp.issubdtype(dtype, jnp.integer):
    raise errors.UserError(
      f'{_path(layer)}: ids have the dtype {dtype}; expected integers'
    )


def check_same_form(what: str, inputs: Any, outputs: Any, why: str):
  """Raises a UserError unless outputs have the inputs' structure and shapes.

  Args:
    what: name of the layer, for the message.
    inputs: a pytree of arrays.
    outputs: a pytree of arrays; shapes and dtypes must be those of `inputs`.
    why: purpose of the check, for the message.
  """
  expected, got = (
    jax.tree.map(lambda x: f'{x.dtype}{list(x.shape)}', tree)
    for tree in (inputs, outputs)
  )
  if expected != got:
    raise errors.UserError(
      f'{what} maps {expected} to {got}; expected outputs with the shapes and'
      f' dtypes of the inputs, {why}'
    )


def _path(layer: nn.Module) -> str:
  """Returns the path of a layer and its class: `lm.ff.linear: Linear`."""
  return ': '.join(filter(None, ['.'.join(layer.path), type(layer).__name__]))
