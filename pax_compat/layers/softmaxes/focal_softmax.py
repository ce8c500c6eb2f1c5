"""Softmax with the focal loss.

Shapes: D input dims, V classes, "..." positions, such as [B, T].
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layers.softmaxes import vocabulary_loss
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax
from pax_compat.layers.softmaxes.vocabulary_loss import CrossEntropy


class FocalSoftmax(FullSoftmax):
  """A `FullSoftmax` with the focal loss, https://arxiv.org/abs/1708.02002.

  The cross-entropy of a class with predicted probability p is multiplied by
  (1 - p)^gamma and by the factor of the class.

  Attributes:
    focal_gamma: gamma; 0 is the cross-entropy.
    class_factors: [V], a factor for each class; None takes 1.
  """

  focal_gamma: float = 0.0
  class_factors: Sequence[float] | None = None

  def setup(self):
    super().setup()
    for field in ('label_smoothing_prob', 'z_loss_weight', 'chunk_size'):
      if getattr(self, field):
        raise errors.UserError(
          f'FocalSoftmax.{field} is {getattr(self, field)}; the focal loss does'
          ' not support it, expected 0'
        )
    factors = self.class_factors
    if factors is not None and len(factors) != self.num_classes:
      raise errors.UserError(
        f'FocalSoftmax.class_factors has {len(factors)} entries; expected one'
        f' for each of the {self.num_classes} classes (num_classes)'
      )

  def _cross_entropy(
    self, inputs, class_weights, class_ids, class_probabilities
  ) -> tuple[CrossEntropy, jax.Array | None]:
    if class_probabilities is not None or class_ids is None:
      # Also checks the arguments.
      result, logits = super()._cross_entropy(
        inputs, class_weights, None, class_probabilities
      )
    else:
      logits = self.get_logits(inputs)
      result = vocabulary_loss.cross_entropy(
        logits.astype(jnp.float32), class_ids, class_weights
      )
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    if class_probabilities is not None:
      every = jnp.arange(self.num_classes)
      losses = class_probabilities * self._focal(log_probs, every)
      xent = jnp.sum(losses, axis=-1)
    else:
      right = jnp.take_along_axis(log_probs, class_ids[..., None], axis=-1)
      xent = self._focal(right[..., 0], class_ids)
    total = jnp.sum(xent * class_weights)
    return result._replace(xent=xent, total=total), logits

  def _focal(self, log_probs: jax.Array, class_ids: jax.Array) -> jax.Array:
    """Returns the losses [...] of labels [...]."""
    losses = -log_probs
    if self.focal_gamma:
      losses *= (1 - jnp.exp(log_probs)) ** self.focal_gamma
    if self.class_factors is not None:
      losses *= jnp.asarray(self.class_factors, losses.dtype)[class_ids]
    return losses
