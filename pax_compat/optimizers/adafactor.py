"""Optax's Adafactor."""

import jax.numpy as jnp
import numpy as np
import optax

from pax_compat.optimizers.base import BaseOptimizer, counted


class Adafactor(BaseOptimizer):
  """Optax's Adafactor, https://arxiv.org/abs/1804.04235.

  Attributes:
    min_dim_size_to_factor: the second moment of a weight is factored if two of
      its dimensions are at least this large.
    decay_rate: c in the decay of the second moment, 1 - (t + 1)^-c.
    decay_offset: the step that counts as t = 0.
    multiply_by_parameter_scale: whether the learning rate is multiplied by the
      root mean square of the weight, or 0.001 where that is smaller.
    clip_threshold: the update of a weight, before the learning rate, is scaled
      down so that its root mean square is at most this; None for no limit.
    momentum: decay of a mean of the updates; None for none.
    dtype_momentum: dtype of this mean.
    weight_decay_rate: times a weight, subtracted from it in each step,
      independent of the learning rate; None for none.
    eps: added to squared gradients.
    factored: whether any second moment is factored.
  """

  min_dim_size_to_factor: int = 128
  decay_rate: float = 0.8
  decay_offset: int = 0
  multiply_by_parameter_scale: bool = True
  clip_threshold: float | None = 1.0
  momentum: float | None = None
  dtype_momentum: str = 'float32'
  weight_decay_rate: float | None = None
  eps: float = 1e-30
  factored: bool = True

  def grad_transformation(self):
    return counted(
      optax.adafactor(
        self.learning_rate_fn(),
        min_dim_size_to_factor=self.min_dim_size_to_factor,
        decay_rate=self.decay_rate,
        decay_offset=self.decay_offset,
        multiply_by_parameter_scale=self.multiply_by_parameter_scale,
        clipping_threshold=self.clip_threshold,
        momentum=self.momentum,
        dtype_momentum=jnp.dtype(self.dtype_momentum),
        weight_decay_rate=self.weight_decay_rate,
        eps=self.eps,
        factored=self.factored,
      )
    )

  def reduced_dim(self, name, weight_shape, leaf_shape):
    if name not in ('v_row', 'v_col'):
      return super().reduced_dim(name, weight_shape, leaf_shape)
    # Optax's choice: the rows' means are over the largest dimension.
    largest = np.argsort(weight_shape)
    return int(largest[-1 if name == 'v_row' else -2])
