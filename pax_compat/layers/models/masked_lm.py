"""Random masking of tokens, for masked language models.

Shapes: B batch, T time.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED
from pax_compat.layers.input_checks import check_integers


class MaskedLmDataAugmenter(base_layer.BaseLayer):
  """Replaces random tokens by a mask token or by random tokens.

  See https://arxiv.org/abs/1810.04805. Each token is drawn independently, from
  the stream `random`, in training and in evaluation.

  Attributes:
    vocab_size: number of tokens.
    mask_prob: the probability that a token is replaced by the mask token.
    random_prob: the probability that it is replaced by a random token, possibly
      itself.
    same_prob: the probability that it is kept, but predicted. The three sum to
      1 at most.
    mask_token_id: the mask token.
    random_avoid_ids: tokens that are excluded from random replacements.
  """

  vocab_size: int = REQUIRED
  mask_prob: float = 0.12
  random_prob: float = 0.015
  same_prob: float = 0.015
  mask_token_id: int = REQUIRED
  random_avoid_ids: Sequence[int] = ()

  def setup(self):
    where = type(self).__name__
    probs = (self.mask_prob, self.random_prob, self.same_prob)
    # A sum of 1 may have a rounding error.
    if min(probs) < 0 or not 0 < sum(probs) <= 1 + 1e-6:
      raise errors.UserError(
        f'{where}: mask_prob, random_prob and same_prob are {probs}; expected'
        ' probabilities whose sum is more than 0 and 1 at most'
      )
    for name, ids in (
      ('mask_token_id', [self.mask_token_id]),
      ('random_avoid_ids', self.random_avoid_ids),
    ):
      unknown = [i for i in ids if not 0 <= i < self.vocab_size]
      if unknown:
        raise errors.UserError(
          f'{where}.{name}: {unknown[0]} is not a token; expected 0 to'
          f' {self.vocab_size - 1}, below vocab_size'
        )
    if not self._choices():
      raise errors.UserError(
        f'{where}.random_avoid_ids has all tokens; expected at least one token'
        ' not in it'
      )

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Masks tokens.

    Args:
      inputs: [B, T], int, the tokens.
      paddings: [B, T], 1 for padding, which is never masked.

    Returns:
      The masked tokens [B, T], and the weights of predictions [B, T] float32, 1
      for masked tokens, else 0.
    """
    check_integers(self, inputs)
    # One random number per token selects among the four cases.
    drawn = jax.random.uniform(self.next_prng_key(), inputs.shape)
    drawn = jnp.where(paddings > 0, jnp.inf, drawn)
    to_random = self.mask_prob + self.random_prob
    augmented = jnp.where(drawn < to_random, self._random(inputs), inputs)
    augmented = jnp.where(drawn < self.mask_prob, self.mask_token_id, augmented)
    replaced = drawn < to_random + self.same_prob
    return augmented.astype(inputs.dtype), replaced.astype(jnp.float32)

  def _choices(self) -> int:
    """Returns the number of possible random tokens."""
    return self.vocab_size - len(set(self.random_avoid_ids))

  def _random(self, inputs: jax.Array) -> jax.Array:
    """Returns random tokens that are not in `random_avoid_ids`."""
    tokens = jax.random.randint(
      self.next_prng_key(), inputs.shape, 0, self._choices(), inputs.dtype
    )
    # In ascending order, each shifts the tokens at or above it by one.
    for avoided in sorted(set(self.random_avoid_ids)):
      tokens += (tokens >= avoided).astype(tokens.dtype)
    return tokens
