"""Losses of VQGANs; also held against Pax's in tests/pax."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat.layers import video
from tests.pax.layer_cases import normal

_VIDEO = normal(2, 3, 4, 4, 3)


def _call(config, **predictions):
  predictions = (
    dict(
      reconstructed=_VIDEO + 0.5,
      logits_real=jnp.ones([2, 1]),
      logits_fake=-jnp.ones([2, 1]),
      r1_gradient_penalty=jnp.float32(0.25),
      quantizer_loss=jnp.float32(2.0),
    )
    | predictions
  )
  layer = config.Instantiate()
  batch = types.SimpleNamespace(video=_VIDEO)
  variables = layer.init(jax.random.key(0), predictions, batch)
  return layer.apply(variables, predictions, batch, mutable=['non_trainable'])


def test_the_sums_are_those_of_the_losses():
  losses, _ = _call(video.VQGANLoss.config())
  assert losses.perceptual_loss == 0
  np.testing.assert_allclose(losses.reconstruction_loss, 5 / 4, rtol=1e-5)
  adversarial = np.log(1 + np.exp(-1))
  np.testing.assert_allclose(losses.d_adversarial_loss, 2 * adversarial, 1e-5)
  np.testing.assert_allclose(
    losses.d_loss, 2 * adversarial + 0.25 + losses.lecam_loss, rtol=1e-5
  )
  np.testing.assert_allclose(
    losses.g_loss, 5 / 4 + 0.1 * np.log(1 + np.e) + 2, rtol=1e-5
  )


def test_moving_averages_are_those_of_the_logits():
  config = video.VQGANLoss.config(polyak_decay=0.75, lecam_weight=2.0)
  losses, updated = _call(config)
  updated = updated['non_trainable']
  assert updated['ema_real_pred'] == 0.25
  assert updated['ema_fake_pred'] == -0.25
  np.testing.assert_allclose(losses.lecam_loss, 2 * 2 * 1.25**2, rtol=1e-6)


class _Perceptual(video.VQGANLoss):
  def perceptual_loss(self, video, reconstructed):
    return jnp.mean(jnp.abs(video - reconstructed))


def test_a_perceptual_loss_of_a_subclass():
  plain, _ = _call(video.VQGANLoss.config())
  losses, _ = _call(_Perceptual.config())
  np.testing.assert_allclose(losses.perceptual_loss, 0.5, rtol=1e-5)
  np.testing.assert_allclose(losses.g_loss, plain.g_loss + 0.5, rtol=1e-5)


def test_the_penalty_is_the_squared_norm_of_gradients():
  logits, penalty = video.r1_gradient_penalty(
    normal(4, 2, 3), lambda x: 2 * jnp.sum(x, (1, 2)), 3.0
  )
  assert logits.shape == (4,)
  np.testing.assert_allclose(penalty, 3 * 6 * 2**2, rtol=1e-6)
