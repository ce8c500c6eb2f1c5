"""Activation functions as layers, so that a template can select one."""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors


class BaseActivation(base_layer.BaseLayer):
  """Base class of the activations.

  A subclass defines `activate` (or `__call__`).
  """

  @classmethod
  def get_subclass_by_name(cls, name: str) -> type['BaseActivation']:
    """Returns the activation with the given name.

    Args:
      name: name of a direct subclass, in any case, with or without underscores.

    Raises:
      UserError: no activation, or more than one, has this name.
    """
    known = cls.__subclasses__()
    wanted = name.replace('_', '').lower()
    found = [c for c in known if c.__name__.lower() == wanted]
    if len(found) == 1:
      return found[0]
    if found:
      classes = ', '.join(sorted(f'{c.__module__}.{c.__name__}' for c in found))
      raise errors.UserError(f'several activations match {name!r}: {classes}')
    raise errors.UserError(
      f'no activation is called {name!r}'
      + errors.did_you_mean(name, [c.__name__ for c in known])
    )

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Applies the activation to each element of `inputs` [...]."""
    out = self.activation_split_dims_mapping.out
    return self.shard(self.activate(inputs), out)

  def activate(self, inputs: jax.Array) -> jax.Array:
    """Returns the activation of each element of `inputs` [...], unsharded."""
    raise NotImplementedError(type(self).__name__)


class Identity(BaseActivation):
  """No activation."""

  def activate(self, inputs):
    return inputs


class ReLU(BaseActivation):
  """max(x, 0)."""

  def activate(self, inputs):
    return jax.nn.relu(inputs)


class SineReLU(BaseActivation):
  """The sine of max(x, 0)."""

  def activate(self, inputs):
    return jnp.sin(jax.nn.relu(inputs))


class ReLU6(BaseActivation):
  """min(max(x, 0), 6)."""

  def activate(self, inputs):
    return jax.nn.relu6(inputs)


class SquaredReLU(BaseActivation):
  """max(x, 0) squared, https://arxiv.org/abs/2109.08668."""

  def activate(self, inputs):
    return jnp.square(jax.nn.relu(inputs))


class CubedReLU(BaseActivation):
  """max(x, 0) to the power of three."""

  def activate(self, inputs):
    return jax.lax.integer_pow(jax.nn.relu(inputs), 3)


class LeakyReLU(BaseActivation):
  """x where it is positive, else `negative_slope` times x.

  Attributes:
    negative_slope: factor for negative x.
  """

  negative_slope: float = 0.01

  def activate(self, inputs):
    return jax.nn.leaky_relu(inputs, self.negative_slope)


class ELU(BaseActivation):
  """x where it is positive, else exp(x) - 1."""

  def activate(self, inputs):
    return jax.nn.elu(inputs)


class Sigmoid(BaseActivation):
  """1 / (1 + exp(-x))."""

  def activate(self, inputs):
    return jax.nn.sigmoid(inputs)


class Tanh(BaseActivation):
  """The hyperbolic tangent."""

  def activate(self, inputs):
    return jnp.tanh(inputs)


class GELU(BaseActivation):
  """x times the standard normal distribution function of x.

  Attributes:
    approximate: whether to use the tanh approximation.
  """

  approximate: bool = True

  def activate(self, inputs):
    return jax.nn.gelu(inputs, approximate=self.approximate)


class SiLU(BaseActivation):
  """x * sigmoid(x), also called swish."""

  def activate(self, inputs):
    return jax.nn.silu(inputs)


class Swish(BaseActivation):
  """x * sigmoid(x), also called SiLU."""

  def activate(self, inputs):
    return jax.nn.silu(inputs)


class Softplus(BaseActivation):
  """log(1 + exp(x))."""

  def activate(self, inputs):
    return jax.nn.softplus(inputs)


class Exp(BaseActivation):
  """exp(x)."""

  def activate(self, inputs):
    return jnp.exp(inputs)
