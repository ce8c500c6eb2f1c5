"""Rotary position embeddings, https://arxiv.org/abs/2104.09864.

Shapes: B batch, T time, N heads, H dims of a head.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED


class RotaryPositionalEmbedding(base_layer.BaseLayer):
  """Rotates pairs of dims by angles proportional to the position.

  Dims i and i + H / 2 are a pair. Their angle is the position divided by a
  timescale, which grows geometrically with i.

  Attributes:
    embedding_dims: H, an even number.
    min_timescale: timescale at i = 0, in positions per radian.
    max_timescale: upper limit of the timescales, at i = H / 2.
    cast_as_fprop_dtype: whether to cast the result to the compute dtype; else
      it is float32.
  """

  embedding_dims: int = REQUIRED
  min_timescale: int = 1
  max_timescale: int = 10_000
  cast_as_fprop_dtype: bool = True

  def setup(self):
    if self.embedding_dims % 2:
      raise errors.wrong_field(self, 'embedding_dims', 'an even number')

  def __call__(
    self, inputs: jax.Array, position: jax.Array | None = None
  ) -> jax.Array:
    """Rotates queries or keys; returns the same shape.

    Args:
      inputs: [B, T, N, H] or [B, T, H].
      position: [B, T] or [1, T]; None takes 0..T-1.

    Raises:
      UserError: the last dimension of `inputs` is not `embedding_dims`.
    """
    if inputs.shape[-1] != self.embedding_dims:
      raise errors.UserError(
        f'RotaryPositionalEmbedding.embedding_dims is {self.embedding_dims},'
        f' but heads have {inputs.shape[-1]} dims'
      )
    if position is None:
      position = jnp.arange(inputs.shape[1])[None]
    half = self.embedding_dims // 2
    growth = self.max_timescale / self.min_timescale
    timescale = self.min_timescale * growth ** (np.arange(half) / half)
    angle = position[..., None] / timescale.astype(np.float32)
    if inputs.ndim == 4:
      angle = angle[:, :, None, :]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    first, second = jnp.split(inputs.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis=-1
    )
    if self.cast_as_fprop_dtype:
      rotated = rotated.astype(self.compute_dtype)
    return rotated

  def extend_step(
    self, inputs: jax.Array, position: jax.Array | int
  ) -> jax.Array:
    """Rotates queries or keys of a decoding step; returns the same shape.

    Args:
      inputs: [B, N, H]; or [B, P, N, H], of which the last one of P positions
        is decoded; or [B, H], without heads.
      position: [] or [B], that of the last one; those before 0 count as 0.
    """
    if inputs.ndim < 4:
      return self.extend_step(
        inputs.reshape(len(inputs), 1, -1, inputs.shape[-1]), position
      ).reshape(inputs.shape)
    last = jnp.broadcast_to(jnp.asarray(position), [len(inputs)])
    steps = jnp.arange(1 - inputs.shape[1], 1)
    return self(inputs, jnp.maximum(last[:, None] + steps, 0))
