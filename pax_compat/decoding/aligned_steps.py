"""Steps of a network that continues prefixes of different lengths.

Shapes: B rows, P prefix, T positions, V vocabulary.
"""

import jax
import jax.numpy as jnp

from pax_compat.decoder_hparams import DecoderHParams
from pax_compat.decoding import prefixes
from pax_compat.decoding.cached_network import CachedNetwork, States
from pax_compat.decoding.prefixes import Prefix
from pax_compat.nested_map import NestedMap

# Stands for the log-probability of tokens that were not predicted; real ones
# are at most 0.
NO_LOGPROB = 1.0


class AlignedSteps:
  """The network's first step over the prefixes, and its steps after it.

  With `fprop_for_prefix`, prefixes are right-aligned and read in one step;
  otherwise they are left-aligned and read token by token.

  Attributes:
    prefix: the left-aligned prefixes, truncated to `seqlen`.
    start: the prefixes as they are aligned.
    first: number of positions that the first step reads.
    lengths: numbers of positions of the cache, in ascending order; the last one
      is T.
    repeats: number of continuations of each prefix.
  """

  def __init__(
    self,
    network: CachedNetwork,
    settings: DecoderHParams,
    prefix: Prefix,
    *,
    repeats: int = 1,
    causal_prefix: bool = True,
    room: int = 0,
  ):
    """Aligns prefixes.

    Args:
      network: computes logits.
      settings: of the decoder.
      prefix: the prefixes, left-aligned.
      repeats: number of continuations of each.
      causal_prefix: whether attention within the prefix is causal.
      room: number of positions of the cache behind the last decoded token.
    """
    self._network = network
    self._aligned = settings.fprop_for_prefix
    # Greedy settings lack the field.
    self._early_exit = getattr(settings, 'early_exit', True)
    self._causal_prefix = causal_prefix
    self.repeats = repeats
    self.prefix = prefixes.truncate(prefix, settings.seqlen)
    self._settings = settings
    if self._aligned:
      self.start = prefixes.right_aligned(self.prefix)
      self.first = self.prefix.ids.shape[1]
      self.lengths = tuple(
        self.first + n + room for n in settings.decode_stages
      )
    else:
      self.start, self.first = self.prefix, 1
      self.lengths = (settings.seqlen + room,)

  @property
  def total(self) -> int:
    """T."""
    return self.lengths[-1]

  def repeat(self, x: jax.Array) -> jax.Array:
    """Returns each row of `x` [B, ...] `repeats` times."""
    return jnp.repeat(x, self.repeats, axis=0) if self.repeats > 1 else x

  def initial_ids(self) -> jax.Array:
    """Returns the aligned prefixes, [B * repeats, T]."""
    return self.repeat(prefixes.pad(self.start, self.total).ids)

  def padded_prefix_ids(self) -> jax.Array:
    """Returns the left-aligned prefixes [B, P], padded as in Pax.

    If they are read in one step, they have room for the first `decode_stages`.
    """
    return prefixes.with_room(self.prefix, self._settings).ids

  def read_prefix(self) -> tuple[jax.Array, States]:
    """Returns the logits after the first step, and the states.

    Returns:
      Logits [B * repeats, V], and the states of as many rows.
    """
    length = self.lengths[0]
    return self._network.begin(
      self.start.ids[:, : self.first],
      length,
      self.repeats,
      causal=self._causal_prefix,
      **self._positions(self.start.offsets, jnp.arange(self.first), length),
    )

  def read(
    self, states: States, ids: jax.Array, position: jax.Array, length: int
  ) -> tuple[jax.Array, States]:
    """Reads the tokens of a position.

    Args:
      states: the states.
      ids: [B * repeats], the tokens.
      position: [], their position.
      length: number of positions of the states.

    Returns:
      Logits [B * repeats, V], and the new states.
    """
    return self._network.step(
      states,
      ids[:, None],
      position,
      causal=True,
      **self._positions(
        self.repeat(self.start.offsets), position[None], length
      ),
    )

  def read_rows(
    self, states: States, ids: jax.Array, positions: jax.Array
  ) -> tuple[jax.Array, States]:
    """Reads tokens, in each row at its own position.

    Args:
      states: of `CachedNetwork.per_row`, of T positions.
      ids: [B * repeats, L], the tokens.
      positions: [B * repeats], the position of the first of them.

    Returns:
      Logits [B * repeats, L, V], and the new states.
    """
    indices = positions[:, None] + jnp.arange(ids.shape[1])
    return self._network.step_rows(
      states,
      ids,
      positions,
      **self._positions(self.repeat(self.start.offsets), indices, self.total),
    )

  def grow(self, states: States, length: int, new_length: int) -> States:
    """Returns states of more positions."""
    return self._network.grow(states, new_length - length)

  def goes_on(self, length: int, state: tuple[NestedMap, States]) -> jax.Array:
    """Whether a decoding loop goes on.

    Args:
      length: number of positions of the cache.
      state: of the loop: `step`, the position before the new tokens, and
        `done`; and the states of the network.

    Returns:
      False at the end of the cache; with `early_exit` also where all are done.
    """
    val, _ = state
    has_room = val.step < length - 1
    if not self._early_exit:
      return has_room
    return has_room & ~jnp.all(val.done)

  def _positions(
    self, offsets: jax.Array, indices: jax.Array, length: int
  ) -> dict[str, jax.Array]:
    """Returns `segment_pos` and `mask` of a step after aligned prefixes."""
    return aligned_positions(offsets, indices, length) if self._aligned else {}

  def left_aligned(self, x: jax.Array, fill: float) -> jax.Array:
    """Returns `x` [B * repeats, T], with the first tokens at index 0."""
    return prefixes.left_aligned(x, self.repeat(self.start.offsets), fill)


def aligned_positions(
  offsets: jax.Array, indices: jax.Array, length: int
) -> dict[str, jax.Array]:
  """Returns `segment_pos` and `mask` of a step after aligned prefixes.

  Args:
    offsets: [R], index of the first token of each row.
    indices: [L] or [R, L], the positions that are read.
    length: number of positions of the cache.
  """
  is_token = jnp.arange(length) >= offsets[:, None]
  return {
    'segment_pos': jnp.maximum(indices - offsets[:, None], 0),
    # Masks the padding before a prefix.
    'mask': is_token[:, None, None, :],
  }
