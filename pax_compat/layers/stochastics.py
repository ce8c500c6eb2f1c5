"""Layers that draw random numbers while the model trains."""

import jax
import jax.numpy as jnp

from pax_compat import base_layer


class Dropout(base_layer.BaseLayer):
  """Sets elements to zero at random and scales up the others.

  Does nothing at evaluation, and draws nothing where nothing is dropped.

  Attributes:
    keep_prob: the probability that an element stays.
  """

  keep_prob: float = 1.0

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Returns `inputs` [...] with dropout."""
    if self.keep_prob >= 1.0 or self.do_eval:
      return inputs
    keep = jax.random.bernoulli(
      self.next_prng_key(), self.keep_prob, inputs.shape
    )
    return jnp.where(keep, inputs / self.keep_prob, 0).astype(inputs.dtype)
