"""`Linear` and `Bias` with Pax's protocol of ghost norms."""

import flax.linen as nn
import jax

from pax_compat.ghostnorm import base
from pax_compat.layers import linears


class LinearGhostNorm(linears.Linear):
  """A `Linear` with the protocol of `ghostnorm.base`."""

  @nn.nowrap
  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Maps `inputs` [..., I] to [..., O]."""
    return base.call(self, super().__call__, '__call__', inputs)


class BiasGhostNorm(linears.Bias):
  """A `Bias` with the protocol of `ghostnorm.base`."""

  @nn.nowrap
  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [..., O] plus the bias."""
    return base.call(self, super().__call__, '__call__', inputs)
