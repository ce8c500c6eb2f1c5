"""Adaptive optimizers: gradients are divided by a root of squared gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pax_compat.config import Config
from pax_compat.optimizers.base import BaseOptimizer, counted, inf_to_nan
from pax_compat.optimizers.momentum import clip_and_decay


class Adam(BaseOptimizer):
  """Adam, https://arxiv.org/abs/1412.6980, with optional update clipping.

  The direction is m / (sqrt(v + epsilon_root) + epsilon), with bias-corrected
  moments m and v.

  Attributes:
    beta1: decay of the first moment, the mean of gradients.
    beta2: decay of the second moment, the mean of squared gradients.
    epsilon: added to the root of the second moment.
    epsilon_root: added to the second moment.
    clip_threshold: if positive, the direction of a weight is scaled down so
      that its root mean square is at most this.
    weight_decay: times the weight, added to its direction. It applies to all
      weights; `decoupled_weight_decay` exempts those that skip regularization.
    sharded_adam: False is Pax's name for Adam without clipping, `weight_decay`
      and `maybe_inf_to_nan`; their defaults are ignored.
    maybe_inf_to_nan: whether infinities in gradients become NaN.
    epsilon_hat: whether epsilon is added before the bias correction (the
      "epsilon hat" of the paper's section 2, as in TensorFlow 1 and so in
      Lingvo), else after it.

  Raises:
    UserError: a field has no effect with the value of another one.
  """

  beta1: float = 0.9
  beta2: float = 0.999
  epsilon: float = 1e-6
  epsilon_root: float = 0.0
  clip_threshold: float = 1.0
  weight_decay: float = 0.0
  sharded_adam: bool = True
  maybe_inf_to_nan: bool = True
  epsilon_hat: bool = False

  @classmethod
  def HParamsA(cls) -> Config:
    """Returns a config with beta2 0.997 and epsilon 1e-9."""
    return cls.config(beta1=0.9, beta2=0.997, epsilon=1e-9)

  @classmethod
  def HParamsB(cls) -> Config:
    """Returns a config with beta2 0.98 and epsilon 1e-9."""
    return cls.config(beta1=0.9, beta2=0.98, epsilon=1e-9)

  def __post_init__(self):
    super().__post_init__()
    if not self.sharded_adam:
      needs = 'it has no effect where sharded_adam is False'
      self.refuse(clip_threshold=needs, weight_decay=needs)
    if self.epsilon_hat:
      self.refuse(epsilon_root='it has no effect where epsilon_hat is True')

  def direction(self):
    if self.epsilon_hat:
      scale = scale_by_adam_epsilon_hat(self.beta1, self.beta2, self.epsilon)
    else:
      scale = optax.scale_by_adam(
        self.beta1, self.beta2, self.epsilon, self.epsilon_root
      )
    if not self.sharded_adam:
      return scale
    before = [inf_to_nan()] if self.maybe_inf_to_nan else []
    return optax.chain(*before, scale, *clip_and_decay(self))


class AdamW(Adam):
  """Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101.

  Attributes:
    epsilon: as in Optax.
    clip_threshold: 0 for no clipping.
    weight_decay: times the weight, added to its direction; as in Optax.
  """

  epsilon: float = 1e-8
  clip_threshold: float = 0.0
  weight_decay: float = 1e-4


class Lamb(BaseOptimizer):
  """LAMB, https://arxiv.org/abs/1904.00962.

  The direction u of Adam, plus weight_decay * w, is scaled to the norm of the
  weight, unless one of the norms is 0.

  Attributes:
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    eps_root: added to the second moment.
    weight_decay: times the weight, added to its direction.
    mask: the weights that decay: None for all, or a tree of bools
      like (or a prefix of) the weights', or a function from the weights to one.
  """

  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-6
  eps_root: float = 0.0
  weight_decay: float = 0.0
  mask: Any = None

  def direction(self):
    return optax.chain(
      optax.scale_by_adam(self.b1, self.b2, self.eps, self.eps_root),
      optax.add_decayed_weights(self.weight_decay, self.mask),
      optax.scale_by_trust_ratio(),
    )


class Adagrad(BaseOptimizer):
  """Adagrad: the direction is g / sqrt(sum of g^2 + epsilon).

  https://jmlr.org/papers/v12/duchi11a.html

  Attributes:
    initial_accumulator_value: initial value of the sum.
    epsilon: added to the sum, inside the root.
  """

  initial_accumulator_value: float = 0.1
  epsilon: float = 1e-10

  def direction(self):
    return optax.scale_by_rss(self.initial_accumulator_value, self.epsilon)


class ShardedAdagrad(Adagrad):
  """`Adagrad` with other defaults: every state is sharded like its weights.

  Attributes:
    initial_accumulator_value: initial value of the sum.
    epsilon: added to the sum, inside the root.
  """

  initial_accumulator_value: float = 1e-12
  epsilon: float = 1e-12


class RmsProp(BaseOptimizer):
  """RMSProp: momentum of lr * g / sqrt(v + epsilon).

  Names and defaults are Lingvo's.

  Attributes:
    decay: of the mean v of squared gradients.
    momentum: decay of the momentum, which includes the learning rate.
    epsilon: added to the mean, inside the root.
    initial_scale: initial value of the mean.
  """

  decay: float = 0.9
  momentum: float = 0.9
  epsilon: float = 1.0
  initial_scale: float = 1.0

  def grad_transformation(self):
    return counted(
      optax.rmsprop(
        self.learning_rate_fn(),
        decay=self.decay,
        eps=self.epsilon,
        initial_scale=self.initial_scale,
        momentum=self.momentum,
      )
    )


def scale_by_adam_epsilon_hat(
  beta1: float, beta2: float, epsilon: float
) -> optax.GradientTransformation:
  """Returns Adam whose epsilon is not scaled by the bias correction.

  With moments m and v after step t, the direction is
  sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).
  The state is that of `optax.scale_by_adam`. 1 - beta2 is rounded as in
  TensorFlow: of 0.999 it is 0.00100005 in float32.
  """
  adam = optax.scale_by_adam(beta1, beta2)
  b1, b2 = np.float32(beta1), np.float32(beta2)

  def update(gradients, state, params=None):
    del params
    mu = optax.tree.update_moment(gradients, state.mu, b1, 1)
    nu = optax.tree.update_moment(gradients, state.nu, b2, 2)
    count = optax.safe_increment(state.count)
    t = count.astype(jnp.float32)
    correction = jnp.sqrt(1 - b2**t) / (1 - b1**t)
    updates = jax.tree.map(
      lambda m, v: correction * m / (jnp.sqrt(v) + epsilon), mu, nu
    )
    return updates, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

  return optax.GradientTransformation(adam.init, update)
