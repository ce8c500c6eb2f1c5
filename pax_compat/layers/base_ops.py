"""Products and lookups as layers, so that a config can replace them.

A layer with a field `einsum_tpl` computes its product by this layer. Another
template replaces the product, for example by one in bfloat16:

    tpl.linear_tpl.einsum_tpl = my_products.Bfloat16Einsum.config()

A replacement may have weights and state. It is called with the same arguments.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import Config
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.layers import products


class EinsumOp(base_layer.BaseLayer):
  """An einsum."""

  def __call__(self, equation: str, *args: jax.Array) -> jax.Array:
    """Returns the einsum of `args`; shapes are those of the equation."""
    operands, _, output = equation.partition('->')
    is_projection = operands.startswith('...') and output.startswith('...')
    if len(args) == 2 and is_projection and operands.count('...') == 1:
      return products.einsum(equation, *args)
    return jnp.einsum(equation, *args)


class EinsumGatedOp(base_layer.BaseLayer):
  """Two einsums of the same inputs, for a gated feed-forward layer."""

  def __call__(
    self, equation: str, *args: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the einsums of the inputs with the weight and with the gate's.

    Args:
      equation: that of both products.
      *args: inputs, weight and weight of the gate.

    Raises:
      UserError: there are not three arrays.
    """
    check_count(self, args, 3)
    inputs, weight, of_gate = args
    return (
      jnp.einsum(equation, inputs, weight),
      jnp.einsum(equation, inputs, of_gate),
    )


class ArrayLookup(base_layer.BaseLayer):
  """A lookup in a table."""

  def __call__(self, x: jax.Array, idx) -> jax.Array:
    """Returns `x[idx]`."""
    return x[idx]


def weight_product(
  layer: base_layer.BaseLayer,
  equation: str,
  inputs: jax.Array,
  weight: jax.Array,
) -> jax.Array:
  """Returns the product of a layer's child `einsum` with its weight `w`.

  It has a tap of `ghost_norms`, unless another template replaces the product.

  Args:
    layer: has the field `einsum_tpl`.
    equation: see `EinsumOp`.
    inputs: first operand.
    weight: second one.
  """
  outputs = layer.einsum(equation, inputs, weight)
  if is_replaced(layer.einsum_tpl, EinsumOp):
    return outputs
  return ghost_norms.product(layer, 'w', equation, inputs, outputs)


def check_count(layer: base_layer.BaseLayer, args: tuple, expected: int):
  """Raises a `UserError` unless there are `expected` arrays to multiply."""
  if len(args) != expected:
    raise errors.UserError(
      f'{type(layer).__name__} multiplies {expected} arrays, got {len(args)}'
    )


def is_replaced(tpl: Config, default: type) -> bool:
  """Whether a template is of another class than the field's default."""
  return tpl.cls is not default
