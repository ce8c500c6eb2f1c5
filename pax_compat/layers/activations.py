"""Activation functions as layers, so that a template can name one."""

import jax
import jax.numpy as jnp

from pax_compat import base_layer


class BaseActivation(base_layer.BaseLayer):
  """Base of the activations."""

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns the function of each element of `inputs` [...]."""
    raise NotImplementedError(type(self).__name__)


class Identity(BaseActivation):
  """No activation."""

  def __call__(self, inputs):
    return inputs


class ReLU(BaseActivation):
  """max(x, 0)."""

  def __call__(self, inputs):
    return jax.nn.relu(inputs)


class Sigmoid(BaseActivation):
  """1 / (1 + exp(-x))."""

  def __call__(self, inputs):
    return jax.nn.sigmoid(inputs)


class Tanh(BaseActivation):
  """The hyperbolic tangent."""

  def __call__(self, inputs):
    return jnp.tanh(inputs)


class GELU(BaseActivation):
  """x times the normal distribution function of x.

  Attributes:
    approximate: whether the tanh approximation is used.
  """

  approximate: bool = True

  def __call__(self, inputs):
    return jax.nn.gelu(inputs, approximate=self.approximate)


class SiLU(BaseActivation):
  """x * sigmoid(x), also called swish."""

  def __call__(self, inputs):
    return jax.nn.silu(inputs)
