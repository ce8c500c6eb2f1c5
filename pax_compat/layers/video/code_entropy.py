"""Entropies of binary codes, as a loss.

MAGVIT-v2, https://arxiv.org/abs/2310.05737, subtracts the entropy of all codes
from that of one: each vector shall have a certain code, and all codes shall be
used alike.

Shapes: N vectors, V codes, D bits of a code.
"""

import jax
import jax.numpy as jnp

# Kinds of `entropy_loss`.
TYPES = ('softmax', 'argmax')

_LEAST = 1e-5


def _entropy_of_mean(probs: jax.Array) -> jax.Array:
  """Returns the entropy of the mean over vectors of `probs` [N, ..., V]."""
  mean = jnp.mean(probs, axis=0)
  return -jnp.sum(mean * jnp.log(mean + _LEAST), axis=-1)


def entropy_loss(
  affinity: jax.Array, kind: str, temperature: float, weight: float
) -> jax.Array:
  """Returns the mean entropy less that of the mean, [].

  Args:
    affinity: [N, V], the logits of the codes times `temperature`.
    kind: 'softmax'; or 'argmax', which takes the most probable code of each
      vector, with the gradients of the probabilities.
    temperature: of the softmax.
    weight: factor on the entropy of the mean.
  """
  logits = affinity / temperature
  probs = jax.nn.softmax(logits, axis=-1)
  if kind == 'argmax':
    best = jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
    probs = best + probs - jax.lax.stop_gradient(probs)
  crossed = probs * jax.nn.log_softmax(logits, axis=-1)
  of_one = -jnp.mean(jnp.sum(crossed, axis=-1))
  return of_one - weight * _entropy_of_mean(probs)


def factorized_entropy_loss(
  affinity: jax.Array, group_size: int, temperature: float, weight: float
) -> jax.Array:
  """Returns the loss of codes whose bits are independent, [].

  The entropy of one vector's code is exact, the sum over bits. That of the mean
  is the mean over groups of bits: over neighbours and, if there are several of
  more than one bit, over bits at equal distances, too.

  Args:
    affinity: [N, D, 2], the logits of each bit's values times `temperature`.
    group_size: number of bits of a group; D is a multiple of it.
    temperature: of the softmax.
    weight: factor on the entropy of the mean.
  """
  logits = affinity / temperature
  probs = jax.nn.softmax(logits, axis=-1)
  crossed = probs * jax.nn.log_softmax(logits, axis=-1)
  of_one = -jnp.mean(jnp.sum(crossed, axis=(-1, -2)))
  count, bits, _ = probs.shape
  groups = probs.reshape(count, bits // group_size, group_size, 2)
  if 1 < group_size < bits:
    apart = probs.reshape(count, group_size, bits // group_size, 2)
    groups = jnp.concatenate([groups, apart.swapaxes(1, 2)], axis=1)
  joint = jnp.ones((*groups.shape[:2], 1), groups.dtype)
  for i in range(group_size):
    joint = joint[..., None] * groups[:, :, i, None]
    joint = joint.reshape(*groups.shape[:2], -1)
  return of_one - weight * jnp.mean(_entropy_of_mean(joint))
