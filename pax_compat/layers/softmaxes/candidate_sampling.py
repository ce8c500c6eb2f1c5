"""Log-uniform sampling of classes, for a sampled softmax.

Classes are numbered by descending frequency. Class k is drawn with a
probability near proportional to 1 / (k + 1), as for words of a language:
log((k + 2) / (k + 1)) / log(V + 1).

Shapes: V classes, S sampled classes, "..." any.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pax_compat import errors

# float32 does not distinguish larger classes.
_MOST_CLASSES = 2**24


class Sample(NamedTuple):
  """Distinct classes, in the order in which they were drawn first.

  Attributes:
    classes: [S], int32.
    num_tries: [], int32, number of draws, including repeated classes.
  """

  classes: jax.Array
  num_tries: jax.Array


def log_uniform_sample(
  key: jax.Array, num_sampled: int, num_classes: int
) -> Sample:
  """Draws classes until S distinct ones are found.

  Args:
    key: PRNG key.
    num_sampled: S.
    num_classes: V.

  Raises:
    UserError: S is larger than V, or V larger than float32 can represent.
  """
  if not 0 < num_sampled <= num_classes <= _MOST_CLASSES:
    raise errors.UserError(
      f'a sample of {num_sampled} of {num_classes} classes; expected at least'
      f' one, no more than there are, and at most {_MOST_CLASSES} classes'
    )
  # Most samples take several times S draws.
  size = 2 * num_sampled
  never = jnp.iinfo(jnp.int32).max

  def more(state):
    i, first, found, classes, tries = state
    drawn = _draw(jax.random.fold_in(key, i), size, num_classes)
    index = i * size + jnp.arange(size)
    first = first.at[drawn].min(index)
    is_new = first[drawn] == index
    rank = found + jnp.cumsum(is_new) - 1
    # Repeated and surplus draws get an index out of range and are dropped.
    slot = jnp.where(is_new, rank, num_sampled)
    classes = classes.at[slot].set(drawn, mode='drop')
    is_last = is_new & (rank == num_sampled - 1)
    tries = jnp.where(
      jnp.any(is_last), i * size + jnp.argmax(is_last) + 1, tries
    )
    return i + 1, first, rank[-1] + 1, classes, tries

  *_, classes, tries = jax.lax.while_loop(
    lambda state: state[2] < num_sampled,
    more,
    (
      jnp.int32(0),
      jnp.full([num_classes], never),
      jnp.int32(0),
      jnp.zeros([num_sampled], jnp.int32),
      jnp.int32(0),
    ),
  )
  return Sample(classes, tries.astype(jnp.int32))


def expected_count(
  classes: jax.Array, sample: Sample, num_classes: int
) -> jax.Array:
  """Returns the probability that classes are in a sample, float32.

  For a class of probability p and n draws that is 1 - (1 - p)^n, or n * p if no
  class was drawn twice, as in TensorFlow.

  Args:
    classes: [...], int.
    sample: the sample.
    num_classes: V.
  """
  probability = jnp.log1p(1 / (classes + 1.0)) / math.log(num_classes + 1)
  tries = sample.num_tries.astype(jnp.float32)
  return jnp.where(
    sample.num_tries == sample.classes.size,
    tries * probability,
    -jnp.expm1(tries * jnp.log1p(-probability)),
  )


def _draw(key: jax.Array, size: int, num_classes: int) -> jax.Array:
  """Draws classes [size] with replacement."""
  scale = math.log(num_classes + 1)
  coarse, fine = jax.random.uniform(key, [2, size])
  # Random numbers of 23 bits are too coarse for a million classes. A second
  # number fills the gaps.
  value = jnp.exp(coarse * scale)
  value += value * fine * (scale * 2**-23)
  drawn = value.astype(jnp.int32) - 1
  return jnp.clip(drawn, 0, num_classes - 1)
