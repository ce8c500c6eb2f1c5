"""Frame stacking: concatenation of neighbouring time steps.

Shapes: B batch, T time, U = ceil(T / stride) output time, W window, D dims.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED

_REDUCTIONS = {'reduce_min': jnp.min, 'reduce_max': jnp.max}


class StackingOverTime(base_layer.BaseLayer):
  """Concatenates the vectors of a window around every `stride`-th time step.

  The ends of the sequence are padded with zeros. With left_context 1,
  right_context 1 and stride 3, the steps 4 1 9 3 5 2 8 become
  (0 4 1) (9 3 5) (2 8 0).

  Attributes:
    left_context: steps of the window before its centre.
    right_context: steps of the window after its centre.
    stride: distance of the centres.
    pad_with_left_frame: whether to pad the start with copies of the first step
      instead of zeros.
    pad_with_right_frame: likewise the end with copies of the last step.
    padding_reduce_option: 'reduce_min' if an output is padding where all steps
      of its window are, 'reduce_max' if any is.
  """

  left_context: int = 0
  right_context: int = 0
  stride: int = REQUIRED
  pad_with_left_frame: bool = False
  pad_with_right_frame: bool = False
  padding_reduce_option: str = 'reduce_min'

  def setup(self):
    errors.check_least(self, 0, 'left_context', 'right_context')
    errors.check_least(self, 1, 'stride')
    errors.check_choice(self, 'padding_reduce_option', _REDUCTIONS)

  @property
  def window_size(self) -> int:
    """W, the number of steps in a window."""
    return self.left_context + 1 + self.right_context

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Stacks.

    Args:
      inputs: [B, T, D].
      paddings: [B, T, 1] or [B, T], 1 where a step is padding; None for no
        padding.

    Returns:
      The stacked inputs [B, U, W * D], and their paddings with the rank of
      `paddings`, [B, U, 1] or [B, U].
    """
    if paddings is None:
      paddings = jnp.zeros((*inputs.shape[:2], 1), inputs.dtype)
    flat = paddings.ndim == 2
    if flat:
      paddings = paddings[..., None]
    reduce = _REDUCTIONS[self.padding_reduce_option]
    stacked = reduce(self._stack(paddings, 1.0), axis=-1, keepdims=not flat)
    outputs = self._stack(inputs, 0.0)
    outputs = self.shard(outputs, self.activation_split_dims_mapping.out)
    return outputs, stacked

  def _stack(self, x: jax.Array, beyond: float) -> jax.Array:
    """Maps `x` [B, T, D] to [B, U, W * D]."""
    length = x.shape[1]
    x = _extended(x, self.left_context, 0, self.pad_with_left_frame, beyond)
    x = _extended(x, 0, self.right_context, self.pad_with_right_frame, beyond)
    windows = [
      x[:, start : start + length : self.stride]
      for start in range(self.window_size)
    ]
    return jnp.concatenate(windows, axis=-1)

  def unstack(self, stacked: jax.Array) -> jax.Array:
    """Inverts the stacking, as far as possible.

    Args:
      stacked: [B, U, W * D].

    Returns:
      [B, (U - 1) * stride + right_context + 1, D], the first steps of the
      inputs, followed by padding if it is longer than they were.

    Raises:
      UserError: the stride is larger than the window, so steps are missing.
    """
    if self.stride > self.window_size:
      raise errors.UserError(
        f'StackingOverTime.unstack: the stride, {self.stride}, skips steps'
        f' between windows of {self.window_size}; expected a stride of at most'
        ' the window'
      )
    batch, outputs, _ = stacked.shape
    steps = np.arange((outputs - 1) * self.stride + self.right_context + 1)
    # From the window around the centre before the step if it contains the step,
    # else from the next window.
    next_one = steps % self.stride > self.right_context
    window = np.minimum(steps // self.stride + next_one, outputs - 1)
    frame = steps - window * self.stride + self.left_context
    windows = stacked.reshape(batch, outputs, self.window_size, -1)
    return windows[:, window, frame]


def _extended(x, before: int, after: int, repeat: bool, value: float):
  padding = [(0, 0), (before, after), (0, 0)]
  if repeat:
    return jnp.pad(x, padding, mode='edge')
  return jnp.pad(x, padding, constant_values=value)
