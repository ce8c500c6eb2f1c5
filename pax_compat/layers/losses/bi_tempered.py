"""The bi-tempered logistic loss, https://arxiv.org/abs/1906.03361.

A cross entropy that is bounded (temperature t1 < 1) and whose softmax has heavy
tails (t2 > 1), against wrong labels. At t1 = t2 = 1 it is the cross entropy
less the entropy of the labels.

Shapes: C classes, "..." positions, such as [B, T].
"""

import functools

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import WeightHParams, WeightInit

# Closer to 1 than this, a temperature is 1.
_TINY = 1e-15
_ITERATIONS = 5


def _log_t(x: jax.Array, t: jax.Array) -> jax.Array:
  """Returns the tempered logarithm of x."""
  is_one = jnp.abs(t - 1) < _TINY
  rate = jnp.where(is_one, 1.0, 1 - t)
  return jnp.where(is_one, jnp.log(x), (jnp.power(x, rate) - 1) / rate)


def _exp_t(x: jax.Array, t: jax.Array) -> jax.Array:
  """Returns the tempered exponential of x."""
  is_one = jnp.abs(t - 1) < _TINY
  rate = jnp.where(is_one, 1.0, 1 - t)
  power = jnp.power(jnp.maximum(1 + rate * x, 0), 1 / rate)
  return jnp.where(is_one, jnp.exp(x), power)


def _by_fixed_point(logits: jax.Array, t: jax.Array) -> jax.Array:
  """Returns the normalization [..., 1] for t above 1, of logits at most 0."""
  shrunk = logits
  for _ in range(_ITERATIONS):
    partition = jnp.sum(_exp_t(shrunk, t), -1, keepdims=True)
    shrunk = logits * jnp.power(partition, 1 - t)
  partition = jnp.sum(_exp_t(shrunk, t), -1, keepdims=True)
  return -_log_t(1 / partition, t)


def _by_bisection(logits: jax.Array, t: jax.Array) -> jax.Array:
  """Returns the normalization [..., 1] for t below 1, of logits at most 0."""
  rate = jnp.where(t < 1, 1 - t, 1.0)
  possible = jnp.sum(logits > -1 / rate, -1, keepdims=True)
  upper = -_log_t(1 / possible.astype(jnp.float32), t)
  lower = jnp.zeros_like(upper)
  for _ in range(_ITERATIONS):
    middle = (upper + lower) / 2
    total = jnp.sum(_exp_t(logits - middle, t), -1, keepdims=True)
    lower = jnp.where(total < 1, lower, middle)
    upper = jnp.where(total < 1, middle, upper)
  return (upper + lower) / 2


def tempered_softmax(logits: jax.Array, t: jax.Array) -> jax.Array:
  """Returns probabilities of `logits` [..., C] at a temperature.

  Args:
    logits: [..., C].
    t: above 1 for heavy tails, below 1 for a finite support.
  """
  t = jnp.asarray(t, jnp.float32)
  top = jnp.max(logits, -1, keepdims=True)
  below = logits - top
  normalization = jnp.where(
    jnp.abs(t - 1) < _TINY,
    jax.nn.logsumexp(below, axis=-1, keepdims=True),
    jnp.where(t < 1, _by_bisection(below, t), _by_fixed_point(below, t)),
  )
  return _exp_t(below - normalization, t)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def bi_tempered_logistic_loss(
  logits: jax.Array,
  labels: jax.Array,
  t1: jax.Array,
  t2: jax.Array,
  label_smoothing: float = 0.0,
) -> jax.Array:
  """Returns the loss [...]; only the logits have a gradient.

  Args:
    logits: [..., C].
    labels: [..., C], probabilities.
    t1: temperature of the logarithm.
    t2: temperature of the softmax.
    label_smoothing: probability that is taken from the label and distributed
      equally to the other classes.
  """
  return _forward(logits, labels, t1, t2, label_smoothing)[0]


def _forward(logits, labels, t1, t2, label_smoothing):
  if label_smoothing > 0:
    each = label_smoothing / (labels.shape[-1] - 1)
    labels = (1 - labels.shape[-1] * each) * labels + each
  t1, t2 = (jnp.asarray(t, jnp.float32) for t in (t1, t2))
  probabilities = tempered_softmax(logits, t2)
  bregman = labels * (
    _log_t(labels + 1e-10, t1) - _log_t(probabilities, t1)
  ) - (jnp.power(labels, 2 - t1) - jnp.power(probabilities, 2 - t1)) / (2 - t1)
  logp = jax.nn.log_softmax(logits)
  divergence = labels * (jnp.log(labels + _TINY) - logp)
  are_one = (jnp.abs(t1 - 1) < _TINY) & (jnp.abs(t2 - 1) < _TINY)
  losses = jnp.sum(jnp.where(are_one, divergence, bregman), -1)
  return losses, (labels, t1, t2, probabilities)


def _backward(label_smoothing, residuals, of_loss):
  del label_smoothing
  labels, t1, t2, probabilities = residuals
  change = (probabilities - labels) * jnp.power(probabilities, t2 - t1)
  escorts = jnp.power(probabilities, t2)
  escorts = escorts / jnp.sum(escorts, -1, keepdims=True)
  of_logits = change - escorts * jnp.sum(change, -1, keepdims=True)
  return of_loss[..., jnp.newaxis] * of_logits, None, None, None


bi_tempered_logistic_loss.defvjp(_forward, _backward)


class BiTemperedLoss(base_layer.BaseLayer):
  """The bi-tempered loss, with temperatures that start at 1.

  Training counts its steps in the variable `count`. Between `start_step` and
  `end_step` the temperatures go linearly from 1 to `t1` and `t2`, which
  evaluation always uses.

  Attributes:
    t1: temperature of the logarithm; below 1 the loss is bounded.
    t2: temperature of the softmax; above 1 its tails are heavy.
    label_smoothing: see `bi_tempered_logistic_loss`.
    start_step: the last step of the temperatures 1.
    end_step: the first step of `t1` and `t2`; 0 for the start of training.
  """

  t1: float = 1.0
  t2: float = 1.0
  label_smoothing: float = 0.0
  start_step: int = 0
  end_step: int = 0

  def setup(self):
    if self.end_step < self.start_step:
      raise errors.UserError(
        f'BiTemperedLoss: start_step is {self.start_step} and end_step'
        f' {self.end_step}; expected them in this order'
      )
    count = WeightHParams([], WeightInit.Constant(0.0), dtype=jnp.float32)
    self.create_variable('count', count, trainable=False)

  def temperature_schedule(self, count: jax.Array) -> jax.Array:
    """Returns the distance to the final temperatures, from 1 to 0.

    Args:
      count: number of training steps before.
    """
    count = jnp.asarray(count, jnp.float32)
    steps = max(self.end_step - self.start_step, 1)
    left = jnp.maximum(1 - (count - self.start_step) / steps, 0)
    before = 1.0 if self.end_step > 0 else 0.0
    return jnp.where(count >= self.start_step, left, before)

  def __call__(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the loss [...] of each position.

    Args:
      logits: [..., C].
      labels: [..., C], probabilities.
    """
    left = 0.0
    if not self.do_eval:
      count = self.get_var('count')
      self.update_var('count', count + 1)
      left = self.temperature_schedule(count)
    t1, t2 = (left + t * (1 - left) for t in (self.t1, self.t2))
    losses = bi_tempered_logistic_loss(
      logits, labels, t1, t2, self.label_smoothing
    )
    return self.shard(losses, self.activation_split_dims_mapping.out)
