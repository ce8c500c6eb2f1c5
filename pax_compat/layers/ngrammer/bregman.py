"""Online PCA with a Bregman divergence instead of the squared error.

The divergence fits an activation: squares for none, the relative entropy for a
softmax.

Shapes: B batch, K components, "..." dims of the inputs.
"""

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit
from pax_compat.config import REQUIRED

_SMALL = 1e-6


@enum.unique
class ActivationType(enum.StrEnum):
  """The activations of which representations are learned."""

  IDENTITY = 'IDENTITY'
  LEAKY_RELU = 'LEAKY_RELU'
  SOFTMAX = 'SOFTMAX'


def _squares(outputs: jax.Array, labels: jax.Array) -> jax.Array:
  return 0.5 * jnp.sum(jnp.square(outputs - labels)) / outputs.shape[0]


def _leaky_divergence(outputs, labels, slope: float) -> jax.Array:
  before = jax.nn.leaky_relu(labels, 1 / slope)
  after = jax.nn.leaky_relu(outputs, slope)
  terms = 0.5 * (outputs * after - before * labels) - labels * (
    outputs - before
  )
  return jnp.sum(terms) / outputs.shape[0]


def _relative_entropy(outputs, labels) -> jax.Array:
  logs = jnp.log(jnp.maximum(labels, _SMALL))
  terms = jax.nn.logsumexp(outputs, -1) + jnp.sum(labels * (logs - outputs), -1)
  return jnp.mean(terms)


def _inverse_softmax(x: jax.Array) -> jax.Array:
  logs = jnp.log(jnp.maximum(x, _SMALL))
  return logs - jnp.mean(logs, -1, keepdims=True)


def _unit(x: jax.Array) -> jax.Array:
  """Returns an array whose elements have a mean square of 1."""
  return x / jnp.maximum(jnp.linalg.norm(x), _SMALL) * jnp.sqrt(x.size)


class PcaSettings(base_layer.BaseLayer):
  """The settings of `BregmanPCA`, which layers made of it have, too.

  Attributes:
    num_components: K.
    activation_type: the activation that the inputs have gone through.
    negative_slope: slope of a leaky ReLU.
    mean_beta: decay of the mean.
    coefficients_lr: learning rate of the coefficients.
    coefficients_beta: momentum of the coefficients.
    coefficients_steps: number of steps for them.
    components_lr: learning rate of the components.
    components_beta: momentum of the components.
    start_step: first step at which components are updated.
    end_step: step from which on they stay.
    constant_lr_schedule: whether their learning rate is constant; else it falls
      linearly to 0 at `end_step`.
  """

  num_components: int = REQUIRED
  activation_type: ActivationType = ActivationType.IDENTITY
  negative_slope: float = 0.0
  mean_beta: float = 0.99
  coefficients_lr: float = 0.01
  coefficients_beta: float = 0.9
  coefficients_steps: int = 20
  components_lr: float = 0.01
  components_beta: float = 0.9
  start_step: int = 0
  end_step: int = REQUIRED
  constant_lr_schedule: bool = True

  OF_PCA: ClassVar[Sequence[str]] = (
    'num_components',
    'activation_type',
    'negative_slope',
    'mean_beta',
    'coefficients_lr',
    'coefficients_beta',
    'coefficients_steps',
    'components_lr',
    'components_beta',
    'start_step',
    'end_step',
    'constant_lr_schedule',
  )

  def _pca_settings(self) -> dict[str, Any]:
    """Returns the values of the settings by name."""
    return {name: getattr(self, name) for name in self.OF_PCA}


class BregmanPCA(PcaSettings):
  """Learns principal components of its inputs, which it passes on.

  Coefficients are found by steps of gradient descent in each call; components
  and the mean are updated in training, without the learner.

  Attributes:
    input_dims: dims of the inputs without the batch.
  """

  input_dims: int | Sequence[int] = REQUIRED

  def setup(self):
    if self.end_step <= self.start_step:
      raise errors.wrong_field(
        self, 'end_step', f'more than start_step, {self.start_step}'
      )
    dims = self.input_dims
    dims = list(dims) if isinstance(dims, Sequence) else [dims]
    zero = WeightInit.Constant(0.0)
    shape = [self.num_components, *dims]
    for name, weight in {
      'step': WeightHParams([], zero, dtype=jnp.float32),
      'mean': WeightHParams([1, *dims], zero),
      'components': WeightHParams(shape),
      'components_momentum': WeightHParams(shape, zero),
    }.items():
      self.create_variable(name, weight, trainable=False)

  def _functions(self) -> tuple[Callable, Callable, Callable]:
    """Returns the activation, its inverse, and the divergence."""
    kind = ActivationType(self.activation_type)
    if kind == ActivationType.IDENTITY:
      return (lambda x: x), (lambda x: x), _squares
    if kind == ActivationType.SOFTMAX:
      return jax.nn.softmax, _inverse_softmax, _relative_entropy
    slope = self.negative_slope
    if slope <= 0:
      raise errors.UserError(
        f'BregmanPCA.negative_slope is {slope}; a LEAKY_RELU needs a positive'
        ' one'
      )
    return (
      functools.partial(jax.nn.leaky_relu, negative_slope=slope),
      functools.partial(jax.nn.leaky_relu, negative_slope=1 / slope),
      functools.partial(_leaky_divergence, slope=slope),
    )

  def bregman_loss_fn(
    self,
    coefficients: jax.Array,
    components: jax.Array,
    mean: jax.Array,
    labels: jax.Array,
  ) -> jax.Array:
    """Returns the mean divergence of reconstructions from inputs, [].

    Args:
      coefficients: [B, K].
      components: [K, ...].
      mean: [1, ...].
      labels: [B, ...], the inputs.
    """
    outputs = jnp.tensordot(coefficients, components, 1) + mean
    divergence = self._functions()[2]
    labels = jax.lax.stop_gradient(labels)
    if self.activation_type == ActivationType.SOFTMAX:
      size = outputs.shape[-1]
    else:
      size = outputs[0].size
    return divergence(outputs.reshape(-1, size), labels.reshape(-1, size))

  def coefficients_grad_fn(self, *args: jax.Array) -> jax.Array:
    """Returns the gradient of `bregman_loss_fn` by the coefficients."""
    return jax.grad(self.bregman_loss_fn)(*args)

  def components_grad_fn(self, *args: jax.Array) -> jax.Array:
    """Returns the gradient of `bregman_loss_fn` by the components."""
    return jax.grad(self.bregman_loss_fn, 1)(*args)

  def base_learning_rate(self, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the factor of the learning rate, and 1 if there are updates."""
    updates = jnp.where(
      (step >= self.start_step) & (step < self.end_step), 1.0, 0.0
    )
    if self.constant_lr_schedule:
      return updates, updates
    length = self.end_step - self.start_step
    rate = jnp.maximum(1.0 - (step - self.start_step) / length, 0.0)
    return rate * updates, updates

  def reconstruct(self, coefficients: jax.Array) -> jax.Array:
    """Returns the inputs [B, ...] of coefficients [B, K]."""
    outputs = jnp.tensordot(coefficients, self.get_var('components'), 1)
    return self._functions()[0](outputs + self.get_var('mean'))

  def _coefficients(self, inputs, components, mean) -> jax.Array:
    """Returns the coefficients [B, K] of inputs, by gradient descent."""
    beta, steps = self.coefficients_beta, self.coefficients_steps

    def descend(i, carry):
      found, momentum = carry
      slope = _unit(self.coefficients_grad_fn(found, components, mean, inputs))
      momentum = beta * momentum + (1 - beta) * slope
      rate = (1 - i / steps) * self.coefficients_lr
      return found - rate * momentum, momentum

    start = jnp.zeros((inputs.shape[0], self.num_components), inputs.dtype)
    inputs = jax.lax.stop_gradient(inputs)
    found, _ = jax.lax.fori_loop(0, steps, descend, (start, start))
    return jax.lax.stop_gradient(found)

  def __call__(
    self, inputs: jax.Array, mask: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Learns from the inputs, in training.

    Args:
      inputs: [B, ...].
      mask: broadcasts to [B, K]; where it is 0, an input does not affect the
        components.

    Returns:
      The inputs, and their coefficients [B, K], without gradients.
    """
    inputs = inputs.astype(self.compute_dtype)
    mean, components = self.get_var('mean'), self.get_var('components')
    if not self.do_eval:
      rate, updates = self.base_learning_rate(self.get_var('step'))
      self.update_var('step', self.get_var('step') + 1)
      beta = 1 - updates * (1 - self.mean_beta)
      centre = jnp.mean(inputs, axis=0, keepdims=True)
      inverse = self._functions()[1]
      mean = beta * mean + (1 - beta) * inverse(centre)
    coefficients = self._coefficients(inputs, components, mean)
    if not self.do_eval:
      masked = coefficients if mask is None else coefficients * mask
      slope = _unit(self.components_grad_fn(masked, components, mean, inputs))
      beta = self.components_beta
      momentum = beta * self.get_var('components_momentum')
      momentum += (1 - beta) * slope * updates
      components = components - rate * self.components_lr * momentum
      # As in Pax, the momentum itself is not stored.
      self.update_var('mean', jax.lax.stop_gradient(mean))
      self.update_var('components', jax.lax.stop_gradient(components))
    loss = self.bregman_loss_fn(coefficients, components, mean, inputs)
    self.add_summary('bregman_loss', loss)
    return inputs, coefficients
