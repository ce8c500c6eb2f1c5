"""Local attention: each position attends to a window around it.

Shapes: B batch, T time, N heads, K heads of keys and values, H dims of a head,
W positions of a block, U blocks, C positions that a block attends to, L and R
positions of a window up to the target (inclusive) and after it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors
from pax_compat.config import REQUIRED
from pax_compat.layers.attentions.attention_masks import combine_masks
from pax_compat.layers.attentions.attention_ops import AttentionInputs
from pax_compat.layers.attentions.relative_attentions import (
  DotProductAttentionXL,
  SelfAttention,
)


class LocalSelfAttention(SelfAttention):
  """Attention of each position to a window around it.

  Computed by blocks: time and memory grow with T * (L + R + W), not with T * T.

  Attributes:
    block_size: W; None takes max(1, R, L - 1).
    left_context: L.
    right_context: R; None takes 0.
    simulated: whether all logits are computed and those outside the window are
      masked, which is faster unless T is much larger than W.
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
        f'{where}.relative_bias_tpl is not supported with blocks; expected'
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
    self, inputs: AttentionInputs, time_step: jax.Array | int | None = None
  ) -> jax.Array:
    if self.simulated or time_step is not None:
      first = 0 if time_step is None else time_step
      targets = first + jnp.arange(inputs.query.shape[1])
      window = self._window(targets[:, None] - jnp.arange(inputs.key.shape[1]))
      mask = combine_masks(inputs.mask, window[None, None])
      return super()._encode(inputs._replace(mask=mask), time_step)
    return self._encode_blocks(inputs)

  def _window(self, distance):
    """Returns which distances, target minus source, are in the window."""
    return (-self._right() <= distance) & (distance < self.left_context)

  def _encode_blocks(self, inputs: AttentionInputs) -> jax.Array:
    """Returns the contexts of all positions, with blocks as a larger batch."""
    batch, length = inputs.query.shape[:2]
    size, before = self._block(), self.left_context - 1
    blocks = -(-length // size)
    seen = before + size + self._right()
    # [U, C], the sources of each block; some are outside the sequence.
    sources = np.arange(blocks)[:, None] * size - before + np.arange(seen)
    inside = (0 <= sources) & (sources < length)
    distance = np.arange(size)[:, None] + before - np.arange(seen)
    visible = self._window(distance) & inside[:, None]
    if inputs.causal:
      visible &= distance >= 0
    visible = jnp.asarray(visible)[None, None]
    if inputs.mask is not None:
      visible &= _in_blocks(inputs.mask, sources, blocks * size)
    block_inputs = AttentionInputs(
      _split(inputs.query, blocks, size),
      self._sources(inputs.key, blocks),
      self._sources(inputs.value, blocks),
      # [B, N, U, W, C] to [B * U, N, W, C].
      mask=_fold(jnp.moveaxis(visible, 1, 2), batch),
    )
    # `before` is the index of a block's first target among its sources.
    encoded = super()._encode(block_inputs, before)
    encoded = encoded.reshape(batch, blocks * size, *encoded.shape[2:])
    return encoded[:, :length]

  def _sources(self, x: jax.Array, blocks: int) -> jax.Array:
    """Returns the sources of each block, [B * U, C, K, H], of [B, T, K, H]."""
    size, before = self._block(), self.left_context - 1
    seen = before + size + self._right()
    # A block and enough blocks after it to cover its sources.
    count = -(-seen // size)
    after = (blocks + count - 1) * size - before - x.shape[1]
    x = jnp.pad(x, ((0, 0), (before, after), (0, 0), (0, 0)))
    x = x.reshape(x.shape[0], -1, size, *x.shape[2:])
    x = jnp.concatenate([x[:, i : i + blocks] for i in range(count)], axis=2)
    return x[:, :, :seen].reshape(-1, seen, *x.shape[3:])


class LocalSelfAttentionXL(LocalSelfAttention, DotProductAttentionXL):
  """A `LocalSelfAttention` with the logits of a `DotProductAttentionXL`."""


def _split(x: jax.Array, blocks: int, size: int) -> jax.Array:
  """Splits `x` [B, T, N, H] into blocks, [B * U, W, N, H]."""
  x = jnp.pad(x, ((0, 0), (0, blocks * size - x.shape[1]), (0, 0), (0, 0)))
  return x.reshape(-1, size, *x.shape[2:])


def _fold(x: jax.Array, batch: int) -> jax.Array:
  """Merges the first two dimensions of `x` [B, U, ...]; B may be 1."""
  x = jnp.broadcast_to(x, (batch, *x.shape[1:]))
  return x.reshape(-1, *x.shape[2:])


def _in_blocks(mask: jax.Array, sources: np.ndarray, length: int) -> jax.Array:
  """Returns a mask by blocks.

  Args:
    mask: broadcasts to [B, N, T, T].
    sources: [U, C], indices of the sources of each block.
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
