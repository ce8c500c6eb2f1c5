"""The bi-tempered loss; its numbers are held against Pax's in tests/pax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, layers
from pax_compat.layers.losses import bi_tempered

LOGITS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
LABELS = np.eye(5, dtype=np.float32)[[0, 2, 4]]


@pytest.mark.parametrize('t', [0.7, 1.0, 1.5])
def test_probabilities(t):
  p = bi_tempered.tempered_softmax(LOGITS, t)
  np.testing.assert_allclose(p.sum(-1), 1, atol=0.1 if t < 1 else 1e-3)
  assert (p.argmax(-1) == LOGITS.argmax(-1)).all()


def test_at_temperature_one_it_is_the_cross_entropy():
  def loss(logits):
    return jnp.sum(
      bi_tempered.bi_tempered_logistic_loss(logits, LABELS, 1.0, 1.0)
    )

  def xent(logits):
    return -jnp.sum(LABELS * jax.nn.log_softmax(logits))

  for ours, want in zip(
    jax.value_and_grad(loss)(LOGITS),
    jax.value_and_grad(xent)(LOGITS),
    strict=True,
  ):
    np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_that_of_the_loss():
  def loss(logits):
    return jnp.sum(
      bi_tempered.bi_tempered_logistic_loss(logits, LABELS, 0.7, 1.2)
    )

  found, step = jax.grad(loss)(LOGITS), 1e-2
  for i in range(3):
    change = np.zeros_like(LOGITS)
    change[i, i] = step
    slope = (loss(LOGITS + change) - loss(LOGITS - change)) / (2 * step)
    np.testing.assert_allclose(found[i, i], slope, rtol=2e-2)


def test_a_wrong_label_costs_no_more_than_a_bound():
  logits = jnp.array([[1000.0, 0.0]])
  labels = jnp.array([[0.0, 1.0]])
  loss = bi_tempered.bi_tempered_logistic_loss(logits, labels, 0.5, 1.5)
  assert loss[0] < 4


def test_temperatures_change_in_training():
  layer = layers.BiTemperedLoss.config(
    t1=0.5, start_step=2, end_step=4
  ).Instantiate()
  left = [float(layer.temperature_schedule(step)) for step in range(6)]
  assert left == [1, 1, 1, 0.5, 0, 0]
  layer = layers.BiTemperedLoss.config(start_step=2).Instantiate()
  with pytest.raises(errors.UserError, match='start_step is 2 and end_step 0'):
    layer.init(jax.random.key(0), LOGITS, LABELS)
