"""Losses of predicted values that a detector chooses by template.

A loss has parameters of each value: the value itself, and how sure it is.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.layers.detection import box_losses


class HuberLoss(base_layer.BaseLayer):
  """Huber losses divided by `delta`, see `box_losses.scaled_huber`.

  Attributes:
    delta: the largest error with a quadratic loss.
  """

  delta: float = 1 / 9

  # The parameters of each value.
  num_params = 1

  def __call__(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns [..., D].

    Args:
      predictions: [..., D].
      labels: [..., D].
    """
    return box_losses.scaled_huber(predictions - labels, self.delta)


class LaplaceLoss(base_layer.BaseLayer):
  """The divergence of predicted Laplace distributions from wanted ones.

  As https://arxiv.org/abs/1910.11375. It is the Kullback-Leibler divergence of
  the wanted distribution relative to the predicted one.

  Attributes:
    target_scale: of the wanted distributions.
    min_scale: the least scale that is predicted.
  """

  target_scale: float = 0.003
  min_scale: float = 1e-3

  # Its mean, and its scale before the softplus.
  num_params = 2

  def __call__(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns [..., D].

    Args:
      predictions: [..., 2 * D], all means before all scales.
      labels: [..., D], the means of the wanted distributions.
    """
    means, scales = jnp.split(predictions, 2, axis=-1)
    scales = jax.nn.softplus(scales) + self.min_scale
    distances = jnp.abs(means - labels)
    ratio = self.target_scale / scales
    near = ratio * jnp.exp(-distances / self.target_scale)
    return near - 1.0 - jnp.log(ratio) + distances / scales
