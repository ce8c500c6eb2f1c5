"""Products of activations with weights."""

import jax
import jax.numpy as jnp

from pax_compat.layer_core import sharding


def einsum(equation: str, inputs: jax.Array, weight: jax.Array) -> jax.Array:
  """Returns `jnp.einsum(equation, inputs, weight)`.

  On a single CPU, the leading dimensions of the inputs are merged before. The
  gradient of the weight then sums over one dimension: where it sums over batch
  and time, XLA first copies its whole operand transposed, which takes an eighth
  of the time of a feed-forward layer. Elsewhere the dimensions stay, as each of
  them may be split over the mesh.

  >>> einsum('...i,io->...o', jnp.ones([2, 3, 4]), jnp.ones([4, 5])).shape
  (2, 3, 5)

  Args:
    equation: of the form '...abc,cd->...abd': the leading dimensions of the
      inputs are those of the outputs.
    inputs: the activations.
    weight: has no leading dimensions.
  """
  named = len(equation.partition(',')[0].removeprefix('...'))
  leading = inputs.shape[: inputs.ndim - named]
  if len(leading) < 2 or not sharding.is_one_cpu():
    return jnp.einsum(equation, inputs, weight)
  merged = inputs.reshape(-1, *inputs.shape[len(leading) :])
  outputs = jnp.einsum(equation, merged, weight)
  return outputs.reshape(*leading, *outputs.shape[1:])
