"""Attention that sees only what is near.

Shapes: B batch, T time, N heads, K heads of keys and values, H dims of a head,
W positions of a block, U blocks, C positions that a block sees, L and R how
many a position sees before it (itself included) and after it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors
from pax_compat.config import REQUIRED
from pax_compat.layers.attentions.attention_masks import combine_masks
from pax_compat.layers.attentions.relative_attentions import (
  DotProductAttentionXL,
  SelfAttention,
)


class LocalSelfAttention(SelfAttention):
  """Attention of each position to a window around it.

  It goes by blocks: time and memory grow with T * (L + R + W), not with T * T.

  Attributes:
    block_size: W; None takes max(1, R, L - 1).
    left_context: L.
    right_context: R; None takes 0.
    simulated: whether all logits are computed and those outside of the window
      hidden, which is faster where T is not much larger than W.
  """

  block_size: int | None = None
  left_context: int = REQUIRED
  right_context: int | None = None
  simulated: bool = False

  def _check_fields(self):
    super()._check_fields()
    where = type(self).__name__
    for name, value, least in (
      ('left_context', self.left_context, 1),
      ('right_context', self._right(), 0),
      ('block_size', self._block(), 1),
    ):
      if value < least:
        raise errors.UserError(
          f'{where}.{name} is {value}; expected {least} or more'
        )
    if self.relative_bias_tpl is not None and not self.simulated:
      raise errors.UserError(
        f'{where}.relative_bias_tpl: blocks have no relative bias; expected'
        ' None, or simulated=True'
      )

  def _right(self) -> int:
    """Returns R."""
    return self.right_context or 0

  def _block(self) -> int:
    """Returns W."""
    if self.block_size is not None:
      return self.block_size
    return max(1, self._right(), self.left_context - 1)

  def _encode(
    self, query, key, value, *, mask, bias, causal, time_step
  ) -> jax.Array:
    if self.simulated or time_step is not None:
      first = 0 if time_step is None else time_step
      targets = first + jnp.arange(query.shape[1])
      window = self._window(targets[:, None] - jnp.arange(key.shape[1]))
      return super()._encode(
        query,
        key,
        value,
        mask=combine_masks(mask, window[None, None]),
        bias=bias,
        causal=causal,
        time_step=time_step,
      )
    return self._encode_blocks(query, key, value, mask, causal)

  def _window(self, distance):
    """Returns which distances, target minus source, are in the window."""
    return (-self._right() <= distance) & (distance < self.left_context)

  def _encode_blocks(self, query, key, value, mask, causal) -> jax.Array:
    """Returns what all positions attend to, as blocks of a larger batch."""
    batch, length = query.shape[:2]
    size, before = self._block(), self.left_context - 1
    blocks = -(-length // size)
    seen = before + size + self._right()
    # [U, C], the sources that each block sees; some are outside of the
    # sequence.
    sources = np.arange(blocks)[:, None] * size - before + np.arange(seen)
    inside = (0 <= sources) & (sources < length)
    distance = np.arange(size)[:, None] + before - np.arange(seen)
    visible = self._window(distance) & inside[:, None]
    if causal:
      visible &= distance >= 0
    visible = jnp.asarray(visible)[None, None]
    if mask is not None:
      visible &= _in_blocks(mask, sources, blocks * size)
    encoded = super()._encode(
      _split(query, blocks, size),
      self._contexts(key, blocks),
      self._contexts(value, blocks),
      # [B, N, U, W, C] to [B * U, N, W, C].
      mask=_fold(jnp.moveaxis(visible, 1, 2), batch),
      bias=None,
      causal=False,
      # Where the first target of a block is among what the block sees.
      time_step=before,
    )
    encoded = encoded.reshape(batch, blocks * size, *encoded.shape[2:])
    return encoded[:, :length]

  def _contexts(self, x: jax.Array, blocks: int) -> jax.Array:
    """Returns what each block sees of `x` [B, T, K, H], [B * U, C, K, H]."""
    size, before = self._block(), self.left_context - 1
    seen = before + size + self._right()
    # A block and as many after it as it takes to see enough.
    parts = -(-seen // size)
    after = (blocks + parts - 1) * size - before - x.shape[1]
    x = jnp.pad(x, ((0, 0), (before, after), (0, 0), (0, 0)))
    x = x.reshape(x.shape[0], -1, size, *x.shape[2:])
    x = jnp.concatenate([x[:, i : i + blocks] for i in range(parts)], axis=2)
    return x[:, :, :seen].reshape(-1, seen, *x.shape[3:])


class LocalSelfAttentionXL(LocalSelfAttention, DotProductAttentionXL):
  """A `LocalSelfAttention` with the logits of a `DotProductAttentionXL`."""


def _split(x: jax.Array, blocks: int, size: int) -> jax.Array:
  """Cuts `x` [B, T, N, H] into blocks, [B * U, W, N, H]."""
  x = jnp.pad(x, ((0, 0), (0, blocks * size - x.shape[1]), (0, 0), (0, 0)))
  return x.reshape(-1, size, *x.shape[2:])


def _fold(x: jax.Array, batch: int) -> jax.Array:
  """Makes one dimension of the first two of `x` [B, U, ...]; B may be 1."""
  x = jnp.broadcast_to(x, (batch, *x.shape[1:]))
  return x.reshape(-1, *x.shape[2:])


def _in_blocks(mask: jax.Array, sources: np.ndarray, length: int) -> jax.Array:
  """Returns a mask by block.

  Args:
    mask: broadcasts to [B, N, T, T].
    sources: [U, C], what each block sees.
    length: U * W.

  Returns:
    Broadcasts to [B, N, U, W, C].
  """
  blocks = sources.shape[0]
  sources = np.clip(sources, 0, mask.shape[3] - 1)
  if mask.shape[3] == 1:
    sources = np.zeros_like(sources)
  if mask.shape[2] == 1:
    return mask[:, :, 0, sources][:, :, :, None]
  targets = np.minimum(np.arange(length), mask.shape[2] - 1)
  targets = targets.reshape(blocks, -1, 1)
  return mask[:, :, targets, sources[:, None]]
