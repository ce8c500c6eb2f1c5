"""Normalisation layers."""

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED


class BaseNormalization(base_layer.BaseLayer):
  """Base of the normalisations over the last dimension.

  Attributes:
    dim: size of the last dimension; the parent sets it.
  """

  dim: int = REQUIRED


class LayerNorm(BaseNormalization):
  """Layer normalisation, https://arxiv.org/abs/1607.06450.

  Attributes:
    epsilon: added to the variance.
    direct_scale: whether the weight itself is the scale, starting at 1; else
      the scale is 1 + the weight, which starts at 0.
    use_scale: whether there is a scale.
    use_bias: whether there is a bias.
  """

  epsilon: float = 1e-6
  direct_scale: bool = False
  use_scale: bool = True
  use_bias: bool = True

  def setup(self):
    skip = (base_layer.SKIP_LP_REGULARIZATION,)
    first_scale = WeightInit.Constant(1.0 if self.direct_scale else 0.0)
    if self.use_scale:
      self.create_variable(
        'scale', WeightHParams([self.dim], first_scale, collections=skip)
      )
    if self.use_bias:
      self.create_variable(
        'bias',
        WeightHParams([self.dim], WeightInit.Constant(0.0), collections=skip),
      )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [..., D] with mean 0 and variance 1 over D, scaled."""
    x = inputs.astype(jnp.float32)
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    x = (x * jax.lax.rsqrt(variance + self.epsilon)).astype(inputs.dtype)
    if self.use_scale:
      x = x * (self.theta.scale + (0.0 if self.direct_scale else 1.0))
    if self.use_bias:
      x = x + self.theta.bias
    return x
