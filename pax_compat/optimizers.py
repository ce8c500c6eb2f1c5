"""Optimizers: configs that make optax transformations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from pax_compat import config as config_lib
from pax_compat import schedules
from pax_compat.config import Config, sub_config_field


class BaseOptimizer(config_lib.Configurable):
  """What all optimizers have.

  Attributes:
    learning_rate: the base, multiplied by the schedule.
    lr_schedule: the factor at each step.
    clip_gradient_norm_to_value: if positive, all gradients are scaled down
      together so that their global norm is at most this.
    l2_regularizer_weight: if set, this times a weight is added to its gradient.
  """

  learning_rate: float = 0.0
  lr_schedule: Config = sub_config_field(schedules.Constant)
  clip_gradient_norm_to_value: float = 0.0
  l2_regularizer_weight: float | None = None

  def learning_rate_fn(self) -> Callable[[jax.Array], jax.Array]:
    """Returns the function from the step to the learning rate."""
    schedule = self.lr_schedule.Instantiate()
    return lambda count: self.learning_rate * schedule.value_at(count)

  def grad_transformation(self) -> optax.GradientTransformation:
    """Returns the transformation from gradients to updates of the weights.

    It is a chain, whose last part applies the learning rate and counts the
    steps, from 0.
    """
    return optax.chain(
      self.direction(),
      optax.scale_by_learning_rate(self.learning_rate_fn()),
    )

  def direction(self) -> optax.GradientTransformation:
    """Returns the transformation before the learning rate is applied."""
    raise NotImplementedError(type(self).__name__)


class Sgd(BaseOptimizer):
  """Stochastic gradient descent.

  Attributes:
    momentum: decay of the accumulated gradient; None for none.
    nesterov: whether the momentum is Nesterov's.
  """

  momentum: float | None = None
  nesterov: bool = False

  def direction(self):
    if self.momentum is None:
      return optax.identity()
    return optax.trace(decay=self.momentum, nesterov=self.nesterov)


class Adam(BaseOptimizer):
  """Adam, https://arxiv.org/abs/1412.6980.

  Attributes:
    beta1: decay of the mean of gradients.
    beta2: decay of the mean of squared gradients.
    epsilon: added to the root of the second mean.
    epsilon_hat: whether epsilon is added before the correction for the means'
      start at zero (the "epsilon hat" of the paper's section 2, and what
      TensorFlow 1 and so Lingvo does), else after it.
  """

  beta1: float = 0.9
  beta2: float = 0.999
  epsilon: float = 1e-6
  epsilon_hat: bool = False

  def direction(self):
    if self.epsilon_hat:
      return scale_by_adam_epsilon_hat(self.beta1, self.beta2, self.epsilon)
    return optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)


def scale_by_adam_epsilon_hat(
  beta1: float, beta2: float, epsilon: float
) -> optax.GradientTransformation:
  """Adam whose epsilon is not scaled by the correction of the second mean.

  With means m and v after step t, the direction is
  sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).
  The state is that of `optax.scale_by_adam`.
  """
  adam = optax.scale_by_adam(beta1, beta2)

  def update(gradients, state, params=None):
    del params
    mu = optax.tree.update_moment(gradients, state.mu, beta1, 1)
    nu = optax.tree.update_moment(gradients, state.nu, beta2, 2)
    count = optax.safe_increment(state.count)
    t = count.astype(jnp.float32)
    correction = jnp.sqrt(1 - beta2**t) / (1 - beta1**t)
    updates = jax.tree.map(
      lambda m, v: correction * m / (jnp.sqrt(v) + epsilon), mu, nu
    )
    return updates, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

  return optax.GradientTransformation(adam.init, update)
