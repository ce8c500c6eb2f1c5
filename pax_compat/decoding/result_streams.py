"""Results of the decoding loop while it runs, for callbacks.

Shapes: B rows, N samples of a row, T positions, I steps between two calls, C
candidates.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.decoding.aligned_steps import NO_LOGPROB
from pax_compat.decoding.decoder_utils import StreamingResultCallback
from pax_compat.nested_map import NestedMap


class ResultStream:
  """Calls a callback with what was decoded since its last call.

  Attributes:
    callback: the callback.
    first: index of the first decoded position.
    split: (x [R, ...]) -> [B, N, ...], the samples of each row.
    prefix_lengths: [B].
  """

  def __init__(
    self,
    callback: StreamingResultCallback,
    first: int,
    split: Callable[[jax.Array], jax.Array],
    prefix_lengths: jax.Array,
  ):
    if callback.interval_steps < 1:
      raise errors.UserError(
        f'StreamingResultCallback.interval_steps is {callback.interval_steps};'
        ' expected 1 or more'
      )
    self._callback = callback
    self._first = first
    self._split = split
    self._prefix_lengths = prefix_lengths

  def begin(self, rows: int, num_samples: int):
    """Calls `init_fn`."""
    if self._callback.init_fn is not None:
      self._callback.init_fn((rows, num_samples))

  def end(self):
    """Calls `done_fn`."""
    if self._callback.done_fn is not None:
      self._callback.done_fn()

  def call_if_due(self, val: NestedMap):
    """Calls back every `interval_steps` steps, and after the last one.

    Args:
      val: the state of the loop after a step; its last token is at `step`.
    """
    interval = self._callback.interval_steps
    if interval == 1:
      self._call(val)
      return
    decoded = val.step - (self._first - 1)
    is_last = jnp.all(val.done) | (val.step >= val.output_ids.shape[1] - 1)
    jax.lax.cond(
      (decoded % interval == 0) | is_last, lambda: self._call(val), lambda: None
    )

  def _call(self, val: NestedMap):
    interval = self._callback.interval_steps
    index = (val.step - self._first) // interval * interval
    logprobs = _slice(
      val.logprobs, self._first + index, interval, fill=NO_LOGPROB
    )
    out = NestedMap(
      output_ids=_slice(val.output_ids, self._first + index, interval, fill=0),
      decode_lengths=jnp.full_like(val.decode_lengths, interval),
      scores=jnp.sum(jnp.minimum(logprobs, 0), axis=-1),
      done=val.done,
    )
    if 'top_candidate_ids' in val:
      out.logprobs = logprobs
      for name, fill in (
        ('top_candidate_ids', 0),
        ('top_candidate_logprobs', 1),
      ):
        # Their second dimension is the decoding step.
        out[name] = _slice(val[name], index, interval, fill=fill)
    self.call(out, index)

  def call(self, out: NestedMap, step: jax.Array):
    """Calls back.

    Args:
      out: arrays [R, ...] of `StreamingResultCallback`.
      step: [], the number of steps before.
    """
    out = jax.tree.map(self._split, out)
    out.prefix_lengths = jnp.zeros_like(self._prefix_lengths)
    out.step = step
    self._callback.callback_fn(out)


def _slice(
  x: jax.Array, start: jax.Array, size: int, *, fill: float
) -> jax.Array:
  """Returns `size` columns of `x` [R, T, ...]; there is `fill` behind T."""
  widths = [(0, 0)] * x.ndim
  widths[1] = (0, size)
  padded = jnp.pad(x, widths, constant_values=fill)
  return jax.lax.dynamic_slice_in_dim(padded, start, size, axis=1)
