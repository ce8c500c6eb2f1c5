"""Samples of classes for a softmax that does not look at all of them.

Classes are numbered from the most frequent one on. As words of a language do,
class k is drawn with a probability near proportional to 1 / (k + 1):
log((k + 2) / (k + 1)) / log(V + 1).

Shapes: V classes, S sampled classes, "..." any.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pax_compat import errors

# Classes above this are not told apart by float32.
_MOST_CLASSES = 2**24


class Sample(NamedTuple):
  """Different classes, in the order in which they were drawn first.

  Attributes:
    classes: [S], int32.
    num_tries: [], int32, how many were drawn, those drawn again included.
  """

  classes: jax.Array
  num_tries: jax.Array


def log_uniform_sample(
  key: jax.Array, num_sampled: int, num_classes: int
) -> Sample:
  """Draws classes until so many different ones are found.

  Args:
    key: of the random numbers.
    num_sampled: S.
    num_classes: V.

  Raises:
    UserError: there are not as many classes, or more than can be told apart.
  """
  if not 0 < num_sampled <= num_classes <= _MOST_CLASSES:
    raise errors.UserError(
      f'a sample of {num_sampled} of {num_classes} classes; expected at least'
      f' one, no more than there are, and at most {_MOST_CLASSES} classes'
    )
  # Most samples take several times as many draws as they have classes.
  size = 2 * num_sampled
  never = jnp.iinfo(jnp.int32).max

  def more(state):
    i, first, found, classes, tries = state
    drawn = _draw(jax.random.fold_in(key, i), size, num_classes)
    index = i * size + jnp.arange(size)
    first = first.at[drawn].min(index)
    is_new = first[drawn] == index
    rank = found + jnp.cumsum(is_new) - 1
    # What is drawn again, or is one too many, has no place among the classes.
    place = jnp.where(is_new, rank, num_sampled)
    classes = classes.at[place].set(drawn, mode='drop')
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
  """Returns with which probability classes are in a sample, float32.

  That is 1 - (1 - p)^n of a class of probability p, where n were drawn.
  TensorFlow takes n * p where none was drawn again, and so does this.

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
  """Returns classes [size], which may be the same."""
  scale = math.log(num_classes + 1)
  coarse, fine = jax.random.uniform(key, [2, size])
  # Numbers of 23 bits are too far apart for a million classes. A second number
  # fills the gaps.
  value = jnp.exp(coarse * scale)
  value += value * fine * (scale * 2**-23)
  drawn = value.astype(jnp.int32) - 1
  return jnp.clip(drawn, 0, num_classes - 1)
