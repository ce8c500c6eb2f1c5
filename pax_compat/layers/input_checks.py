"""Checks of what layers are called with, so that mistakes have names."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pax_compat import errors


def check_last_dim(layer: nn.Module, field: str, inputs: jax.Array):
  """Raises a UserError unless inputs have as many features as a field says.

  Without it, features of size 1 would be broadcast in silence.

  Args:
    layer: the layer that is called.
    field: its field that says how many features there are.
    inputs: [..., D].
  """
  dims = getattr(layer, field)
  if jnp.shape(inputs)[-1:] != (dims,):
    raise errors.UserError(
      f'{_place(layer)}.{field} is {dims}, but the inputs have the shape'
      f' {list(jnp.shape(inputs))}; expected them to end in {dims}'
    )


def check_integers(layer: nn.Module, ids: jax.Array):
  """Raises a UserError unless `ids` [...] are whole numbers."""
  dtype = jnp.result_type(ids)
  if not jnp.issubdtype(dtype, jnp.integer):
    raise errors.UserError(
      f'{_place(layer)}: ids have the dtype {dtype}; expected integers'
    )


def check_same_form(what: str, inputs: Any, outputs: Any, why: str):
  """Raises a UserError unless outputs look like inputs: shapes and dtypes.

  Args:
    what: made the outputs.
    inputs: a pytree of arrays.
    outputs: another one.
    why: they have to.
  """
  expected, got = (
    jax.tree.map(lambda x: f'{x.dtype}{list(x.shape)}', tree)
    for tree in (inputs, outputs)
  )
  if expected != got:
    raise errors.UserError(
      f'{what} maps {expected} to {got}; expected what it returns to look like'
      f' what it gets, {why}'
    )


def _place(layer: nn.Module) -> str:
  """Returns where a layer is, and its class: `lm.ff.linear: Linear`."""
  return ': '.join(filter(None, ['.'.join(layer.path), type(layer).__name__]))
