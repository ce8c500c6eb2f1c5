"""Optimizers without a second moment: plain, momentum, LARS, Lion."""

from typing import Any

import jax.numpy as jnp
import optax

from pax_compat.optimizers.base import BaseOptimizer, counted, inf_to_nan


class Sgd(BaseOptimizer):
  """Stochastic gradient descent, with optional momentum.

  Attributes:
    momentum: decay of the accumulated gradient; None for none.
    nesterov: whether the momentum is Nesterov's.

  Raises:
    UserError: `nesterov` without `momentum`.
  """

  momentum: float | None = None
  nesterov: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.momentum is None:
      self.refuse(nesterov='it needs momentum')

  def direction(self):
    if self.momentum is None:
      return optax.identity()
    return optax.trace(decay=self.momentum, nesterov=self.nesterov)


class ShardedSgd(Sgd):
  """`Sgd`; all state is sharded like the weights."""


class Lars(BaseOptimizer):
  """LARS, layer-wise learning rates, https://arxiv.org/abs/1708.03888.

  The gradient g + weight_decay * w of each weight is scaled by
  trust_coefficient * |w| / (|g + weight_decay * w| + eps), or by 1 where one of
  the norms is 0. Momentum accumulates it times the learning rate.

  Attributes:
    weight_decay: times the weight, added to its gradient.
    weight_decay_mask: the weights that decay: True for all, or a
      tree of bools like (or a prefix of) the weights', or a function from the
      weights to one.
    trust_coefficient: multiplies the scale.
    eps: added to the gradient's norm.
    trust_ratio_mask: the weights that are scaled, like `weight_decay_mask`.
    momentum: decay of the momentum.
    nesterov: whether the momentum is Nesterov's.
  """

  weight_decay: float = 0.0
  weight_decay_mask: Any = True
  trust_coefficient: float = 0.001
  eps: float = 0.0
  trust_ratio_mask: Any = True
  momentum: float = 0.9
  nesterov: bool = False

  def grad_transformation(self):
    return counted(
      optax.lars(
        self.learning_rate_fn(),
        weight_decay=self.weight_decay,
        weight_decay_mask=self.weight_decay_mask,
        trust_coefficient=self.trust_coefficient,
        eps=self.eps,
        trust_ratio_mask=self.trust_ratio_mask,
        momentum=self.momentum,
        nesterov=self.nesterov,
      )
    )


class Lion(BaseOptimizer):
  """Lion, https://arxiv.org/abs/2302.06675.

  The direction is the sign of beta1 * m + (1 - beta1) * g.

  Attributes:
    beta1: weight of the momentum in the direction.
    beta2: decay of the momentum.
    clip_threshold: if positive, the direction of a weight is scaled down so
      that its root mean square is at most this. It is never above 1.
    weight_decay: times the weight, added to its direction.
    m_dtype: dtype of the momentum.
  """

  beta1: float = 0.9
  beta2: float = 0.99
  clip_threshold: float = 1.0
  weight_decay: float = 0.0
  m_dtype: Any = jnp.bfloat16

  def direction(self):
    steps = [
      inf_to_nan(),
      optax.scale_by_lion(self.beta1, self.beta2, mu_dtype=self.m_dtype),
    ]
    return optax.chain(*steps, *clip_and_decay(self))


def clip_and_decay(optimizer: Any) -> list[optax.GradientTransformation]:
  """Returns transformations for `clip_threshold` and `weight_decay`.

  Args:
    optimizer: has the two fields; 0 for none.
  """
  steps = []
  if optimizer.clip_threshold:
    steps.append(optax.clip_by_block_rms(optimizer.clip_threshold))
  if optimizer.weight_decay:
    steps.append(optax.add_decayed_weights(optimizer.weight_decay))
  return steps
