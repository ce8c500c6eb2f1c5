"""Losses of VQGANs, https://arxiv.org/abs/2012.09841, for videos.

Shapes: B batch, T frames, H height, W width, C channels.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.base_layer import (
  WeightHParams,
  WeightHParamsCollection,
  WeightInit,
)
from pax_compat.layers.template_fields import refuse_mappings
from pax_compat.nested_map import NestedMap


def r1_gradient_penalty(
  inputs: jax.Array,
  logits_fn: Callable[[jax.Array], jax.Array],
  grad_penalty_cost: float = 10.0,
) -> tuple[jax.Array, jax.Array]:
  """Returns logits and the penalty R1, https://arxiv.org/abs/1801.04406.

  Args:
    inputs: real videos, [B, ...].
    logits_fn: the discriminator, from inputs to logits [B, ...].
    grad_penalty_cost: factor of the squared gradients; half of gamma in the
      paper.

  Returns:
    The logits; and the mean over examples [] of the squared norm of the
    gradients of the logits, times the cost.
  """
  logits, pullback = jax.vjp(logits_fn, inputs)
  (gradient,) = pullback(jnp.ones_like(logits))
  per_example = gradient.reshape(len(inputs), -1).astype(jnp.float32)
  square = jnp.sum(jnp.square(per_example), axis=-1)
  return logits, jnp.mean(square) * grad_penalty_cost


def _mean_square(x: jax.Array) -> jax.Array:
  return jnp.mean(jnp.square(x))


class VQGANLoss(base_layer.BaseLayer):
  """Losses of a generator, a VQ-VAE, and of its discriminator.

  The adversarial losses do not saturate, https://arxiv.org/abs/1406.2661.
  Moving averages of the logits, of which there is one value each for real and
  for reconstructed videos, are updated at each call, in evaluations as well, as
  in Pax; trainers keep those of training only. As in Pax, the LeCam loss has
  gradients through the newest term of them.

  Attributes:
    g_adversarial_loss_weight: factor of the generator's adversarial loss.
    reconstruction_loss_weight: factor of the mean squared error.
    polyak_decay: decay of the moving averages.
    lecam_weight: factor of the LeCam loss.
  """

  g_adversarial_loss_weight: float = 0.1
  reconstruction_loss_weight: float = 5.0
  polyak_decay: float = 0.999
  lecam_weight: float = 0.001

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    for name in ('ema_real_pred', 'ema_fake_pred'):
      weight = WeightHParams(
        [],
        WeightInit.Constant(0.0),
        dtype=jnp.float32,
        collections=[WeightHParamsCollection.REQUIRES_MEAN_SYNC],
      )
      self.create_variable(name, weight, trainable=False)

  def lecam_loss(self, real_pred: jax.Array, fake_pred: jax.Array) -> jax.Array:
    """Returns the LeCam loss [], https://arxiv.org/abs/2104.03310.

    Args:
      real_pred: logits of real videos.
      fake_pred: logits of reconstructed videos.
    """
    above = jax.nn.relu(real_pred - self.get_var('ema_fake_pred'))
    below = jax.nn.relu(self.get_var('ema_real_pred') - fake_pred)
    return _mean_square(above) + _mean_square(below)

  def perceptual_loss(
    self, video: jax.Array, reconstructed: jax.Array
  ) -> jax.Array:
    """Returns the perceptual loss [], which is 0, as in Pax.

    A subclass that has a network for it overrides this.

    Args:
      video: [B, T, H, W, C].
      reconstructed: likewise.
    """
    del video, reconstructed
    return jnp.float32(0.0)

  def __call__(
    self, predictions: Mapping[str, jax.Array], input_batch: Any
  ) -> NestedMap:
    """Returns the losses, each [].

    Args:
      predictions: `reconstructed` [B, T, H, W, C], `logits_real` and
        `logits_fake` of the discriminator, `r1_gradient_penalty` [], and in
        training `quantizer_loss` [].
      input_batch: has `video` [B, T, H, W, C].

    Returns:
      `d_loss`, the sum of `d_adversarial_loss`, `grad_penalty` and
      `lecam_loss`; and `g_loss`, that of `reconstruction_loss`,
      `g_adversarial_loss`, `perceptual_loss`, and `quantizer_loss`, which is 0
      in evaluations. All have their factors.
    """
    real, fake = predictions['logits_real'], predictions['logits_fake']
    self._update('ema_real_pred', real)
    self._update('ema_fake_pred', fake)
    video = jnp.asarray(input_batch.video, jnp.float32)
    reconstructed = jnp.asarray(predictions['reconstructed'], jnp.float32)
    losses = NestedMap(
      grad_penalty=predictions['r1_gradient_penalty'],
      lecam_loss=self.lecam_loss(real, fake) * self.lecam_weight,
      d_adversarial_loss=jnp.mean(jax.nn.softplus(-real))
      + jnp.mean(jax.nn.softplus(fake)),
      g_adversarial_loss=jnp.mean(jax.nn.softplus(-fake))
      * self.g_adversarial_loss_weight,
      reconstruction_loss=_mean_square(video - reconstructed)
      * self.reconstruction_loss_weight,
      perceptual_loss=self.perceptual_loss(video, reconstructed),
      quantizer_loss=jnp.float32(0.0)
      if self.do_eval
      else predictions['quantizer_loss'],
    )
    losses.d_loss = (
      losses.d_adversarial_loss + losses.grad_penalty + losses.lecam_loss
    )
    losses.g_loss = (
      losses.reconstruction_loss
      + losses.g_adversarial_loss
      + losses.perceptual_loss
      + losses.quantizer_loss
    )
    return losses

  def _update(self, name: str, logits: jax.Array):
    decay = self.polyak_decay
    new = jnp.mean(logits) * (1 - decay) + self.get_var(name) * decay
    self.update_var(name, new.astype(jnp.float32))
