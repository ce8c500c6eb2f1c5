"""Replaces tokens at random, for a model that is to find them.

Shapes: B batch, T time.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED
from pax_compat.layers.input_checks import check_integers


class MaskedLmDataAugmenter(base_layer.BaseLayer):
  """Masks some tokens and gives out others for them.

  As in https://arxiv.org/abs/1810.04805. Which ones is drawn for each token
  alone, from the stream `random`, in training and at evaluation.

  Attributes:
    vocab_size: of the tokens.
    mask_prob: the probability that a token is replaced by the mask.
    random_prob: the probability that it is replaced by any token, perhaps by
      itself.
    same_prob: the probability that it stays and is to be predicted all the
      same. The three add up to 1 at most.
    mask_token_id: the mask.
    random_avoid_ids: tokens that no other one is replaced by.
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
    # Three that add up to 1 may do so but for rounding.
    if min(probs) < 0 or not 0 < sum(probs) <= 1 + 1e-6:
      raise errors.UserError(
        f'{where}: mask_prob, random_prob and same_prob are {probs}; expected'
        ' probabilities that add up to more than 0 and to 1 at most'
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
        f'{where}.random_avoid_ids are all tokens; expected one to be left'
      )

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Replaces tokens.

    Args:
      inputs: [B, T], int, the tokens.
      paddings: [B, T], 1 where there is none, so that nothing is replaced.

    Returns:
      The tokens that the model is to see, [B, T], and where it is to find the
      right ones, [B, T] float32, 1 there and 0 elsewhere.
    """
    check_integers(self, inputs)
    # One number for each token tells what becomes of it.
    drawn = jax.random.uniform(self.next_prng_key(), inputs.shape)
    drawn = jnp.where(paddings > 0, jnp.inf, drawn)
    to_random = self.mask_prob + self.random_prob
    augmented = jnp.where(drawn < to_random, self._random(inputs), inputs)
    augmented = jnp.where(drawn < self.mask_prob, self.mask_token_id, augmented)
    replaced = drawn < to_random + self.same_prob
    return augmented.astype(inputs.dtype), replaced.astype(jnp.float32)

  def _choices(self) -> int:
    """Returns how many tokens may take the place of others."""
    return self.vocab_size - len(set(self.random_avoid_ids))

  def _random(self, inputs: jax.Array) -> jax.Array:
    """Returns tokens of any kind, but none that are to be avoided."""
    tokens = jax.random.randint(
      self.next_prng_key(), inputs.shape, 0, self._choices(), inputs.dtype
    )
    # In order, so that each one is stepped over by what lies above it.
    for avoided in sorted(set(self.random_avoid_ids)):
      tokens += (tokens >= avoided).astype(tokens.dtype)
    return tokens
