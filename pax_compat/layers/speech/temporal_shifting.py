"""Random shifts of audio in time."""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors


class TemporalShifting(base_layer.BaseLayer):
  """Shifts each example by a random amount while training.

  What is shifted out is lost; zeros, and paddings of 1, take its place.

  Attributes:
    shift_range_ms: the largest shift to either side, in milliseconds; 0, the
      default, for none.
    sample_rate: samples per second.
    axis: of the time, above 0.
  """

  shift_range_ms: float = 0.0
  sample_rate: float = 16000.0
  axis: int = 1

  def setup(self):
    if self.shift_range_ms < 0 or self.axis < 1:
      raise errors.UserError(
        f'TemporalShifting: shift_range_ms is {self.shift_range_ms} and axis'
        f' {self.axis}; expected 0 or more, and 1 or more'
      )

  def __call__(
    self, features: jax.Array, paddings: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array | None]:
    """Shifts examples.

    Args:
      features: [B, ...], with the time at `axis`.
      paddings: of as many axes, or None.

    Returns:
      Features and paddings of the same shapes.

    Raises:
      UserError: a shift may be as long as the signal.
    """
    if self.do_eval or self.shift_range_ms == 0:
      return features, paddings
    most = round(self.sample_rate * self.shift_range_ms / 1000)
    length = features.shape[self.axis]
    if most >= length:
      raise errors.UserError(
        f'TemporalShifting.shift_range_ms is {self.shift_range_ms}, which may'
        f' blank out a signal of {length / self.sample_rate * 1000:g} ms;'
        ' expected less'
      )
    shifts = jax.random.randint(
      self.next_prng_key(), features.shape[:1], -most, most + 1
    )

    def shifted(x, fill):
      sides = [(0, 0)] * x.ndim
      sides[self.axis] = (most, most)
      padded = jnp.pad(x, sides, constant_values=fill)
      return jax.vmap(
        lambda one, shift: jax.lax.dynamic_slice_in_dim(
          one, most + shift, length, self.axis - 1
        )
      )(padded, shifts)

    if paddings is not None:
      paddings = shifted(paddings, 1)
    return shifted(features, 0), paddings
