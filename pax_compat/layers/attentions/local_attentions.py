"""Local attention: each position attends to a window around it.

Shapes: B batch, T time, N heads, K heads of keys and values, H dims of a head,
W positions of a block, U blocks, C positions that a block attends to, L and R
positions of a window up to the target (inclusive) and after it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import errors
from pax_compat.base_layer import WeightHParams
from pax_compat.config import REQUIRED
from pax_compat.layers.attentions import attention_ops
from pax_compat.layers.attentions.attention_masks import combine_masks
from pax_compat.layers.attentions.attention_ops import AttentionInputs
from pax_compat.layers.attentions.dot_product import DotProductAttention
from pax_compat.layers.attentions.relative_attentions import (
  DotProductAttentionXL,
  SelfAttention,
)


class LocalSelfAttention(SelfAttention):
  """Attention of each position to a window around it.

  Computed by blocks: time and memory grow with T * (L + R + W), not with T * T.
  Its weights, if they are returned, are those of the blocks, [B, N, U, W, C].

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

  def _check_cross(self):
    DotProductAttention._check_cross(self)

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
    return self._joined(
      super()._encode(self._in_blocks(inputs), self.left_context - 1), inputs
    )

  def _encode_with_probs(
    self, inputs: AttentionInputs, time_step: jax.Array | int | None = None
  ) -> tuple[jax.Array, jax.Array]:
    if self.simulated:
      return super()._encode_with_probs(inputs, time_step)
    encode = super()._encode
    encoded, probs = attention_ops.encode_with_probs(
      lambda of_blocks: encode(of_blocks, self.left_context - 1),
      self._in_blocks(inputs),
    )
    if self.zero_fully_masked:
      # As in Pax, only the contexts of targets without a source are zeros.
      is_empty = jnp.sum(probs, axis=-1, keepdims=True) == 0
      probs = jnp.where(is_empty, 1 / probs.shape[-1], probs)
    probs = probs.reshape(len(inputs.query), -1, *probs.shape[1:])
    return self._joined(encoded, inputs), jnp.swapaxes(probs, 1, 2)

  def _joined(self, encoded: jax.Array, inputs: AttentionInputs) -> jax.Array:
    """Returns contexts [B * U, W, N, H] as [B, T, N, H]."""
    batch, length = inputs.query.shape[:2]
    encoded = encoded.reshape(batch, -1, *encoded.shape[2:])
    return encoded[:, :length]

  def _block_bias(self) -> jax.Array | None:
    """Returns the bias of each block's logits, [1, N, W, C]; None for none."""
    return None

  def _window(self, distance):
    """Returns which distances, target minus source, are in the window."""
    return (-self._right() <= distance) & (distance < self.left_context)

  def _in_blocks(self, inputs: AttentionInputs) -> AttentionInputs:
    """Returns the inputs of blocks, which are a larger batch."""
    batch, length = inputs.query.shape[:2]
    if inputs.key.shape[1] != length:
      raise errors.UserError(
        f'{type(self).__name__}: {length} targets and {inputs.key.shape[1]}'
        ' sources; expected as many, or simulated=True'
      )
    size, before = self._block(), self.left_context - 1
    blocks = -(-length // size)
    seen = before + size + self._right()
    # [U, C], the sources of each block; some are outside the sequence.
    sources = np.arange(blocks)[:, None] * size - before + np.arange(seen)
    inside = (0 <= sources) & (sources < length)
    distance = np.arange(size)[:, None] + before - np.arange(seen)
    visible = self._window(distance) & inside[:, None]
    # Targets beyond the sequence, in the last block, see nothing.
    visible &= (np.arange(blocks * size) < length).reshape(blocks, size, 1)
    if inputs.causal:
      visible &= distance >= 0
    visible = jnp.asarray(visible)[None, None]
    if inputs.mask is not None:
      visible &= _in_blocks(inputs.mask, sources, blocks * size)
    return AttentionInputs(
      _split(inputs.query, blocks, size),
      self._sources(inputs.key, blocks),
      self._sources(inputs.value, blocks),
      # [B, N, U, W, C] to [B * U, N, W, C].
      mask=_fold(jnp.moveaxis(visible, 1, 2), batch),
      bias=self._block_bias(),
    )

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

  def _check_cross(self):
    DotProductAttentionXL._check_cross(self)


class _BiasedByDistance(LocalSelfAttention):
  """Base of local attention with a bias by distance, without decoding."""

  def _check_fields(self):
    super()._check_fields()
    if self.simulated:
      raise errors.UserError(
        f'{type(self).__name__}.simulated is not supported; expected False'
      )

  def _encode(
    self, inputs: AttentionInputs, time_step: jax.Array | int | None = None
  ) -> jax.Array:
    if time_step is not None:
      raise errors.UserError(
        f'{type(self).__name__} does not decode; use LocalSelfAttention'
      )
    return super()._encode(inputs)

  def _check_cross(self):
    SelfAttention._check_cross(self)

  def _block_sources(self) -> int:
    """Returns C."""
    return self._block() + self.left_context - 1 + self._right()

  def _distances(self) -> np.ndarray:
    """Returns indices [W, C] that grow with source minus target, from 0."""
    size = self._block()
    sources = np.arange(self._block_sources())
    return size - 1 + sources - np.arange(size)[:, None]


class LocalSelfAttentionRelativeBias(_BiasedByDistance):
  """A `LocalSelfAttention` with a learned bias for each head and distance.

  https://arxiv.org/abs/2104.08698, DIET-REL. As in Pax, the smallest distance
  of a block shares the bias of the largest index, which no other has.
  """

  def setup(self):
    super().setup()
    shape = [self.num_heads, self._block_sources() + self._block() - 1]
    self.create_variable('pos_emb_compressed', WeightHParams(shape))

  def _block_bias(self) -> jax.Array | None:
    bias = self.theta.pos_emb_compressed
    return bias[:, (self._distances() - 1) % bias.shape[1]][None]


class LocalSelfAttentionAlibi(_BiasedByDistance):
  """A `LocalSelfAttention` with a linear bias, https://arxiv.org/abs/2108.12409.

  It grows by the slope of a head from each source to the next.
  """

  def _block_bias(self) -> jax.Array | None:
    slopes = alibi_slopes(self.num_heads)[:, None, None]
    return jnp.asarray(slopes * self._distances(), jnp.float32)[None]


def alibi_slopes(num_heads: int) -> np.ndarray:
  """Returns the slopes [N] of ALiBi: a geometric series.

  >>> print(alibi_slopes(4))
  [0.25       0.0625     0.015625   0.00390625]

  Of numbers of heads between powers of 2 the last slopes are those of twice as
  many heads, every second one.
  """
  power = 2 ** int(np.log2(num_heads))
  slopes = 2.0 ** (-8 / power * np.arange(1, power + 1))
  more = np.arange(1, 2 * (num_heads - power), 2)
  return np.concatenate([slopes, 2.0 ** (-4 / power * more)])


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
