"""Masks of time and frequency on spectrograms, to augment training data.

Shapes: B batch, T time, D frequency bins, M masks.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors


class SpectrumAugmenter(base_layer.BaseLayer):
  """SpecAugment without warping, https://arxiv.org/abs/1904.08779.

  Training sets random spans of time and of frequency to 0; evaluation does not
  change the inputs.

  Attributes:
    freq_mask_max_bins: largest number of bins in a mask of frequency; 0 for
      none.
    freq_mask_count: number of masks of frequency.
    use_dynamic_time_mask_max_frames: whether the largest mask of time is
      `time_mask_max_ratio` of the sequence instead of `time_mask_max_frames`.
    time_mask_max_frames: largest number of frames in a mask of time.
    time_mask_count: number of masks of time; with `time_masks_per_frame` the
      largest number.
    time_mask_max_ratio: largest fraction of a sequence in a mask of time.
    time_masks_per_frame: if positive, the number of masks of time, as a
      fraction of the sequence's length.
    augment_at_eval: whether evaluation masks too.
  """

  freq_mask_max_bins: int = 27
  freq_mask_count: int = 2
  use_dynamic_time_mask_max_frames: bool = True
  time_mask_max_frames: int = 40
  time_mask_count: int = 10
  time_mask_max_ratio: float = 0.05
  time_masks_per_frame: float = 0.0
  augment_at_eval: bool = False

  def setup(self):
    for field in ('freq_mask_max_bins', 'freq_mask_count', 'time_mask_count'):
      if getattr(self, field) < 0:
        raise errors.wrong_field(self, field, 'at least 0')

  def __call__(
    self, inputs: jax.Array, paddings: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Masks; returns the masked inputs, [B, T, D], and the same paddings.

    Args:
      inputs: [B, T, D].
      paddings: [B, T]; sequences are padded at their end.
    """
    if self.augment_at_eval or not self.do_eval:
      lengths = jnp.sum(1 - paddings, axis=-1).astype(jnp.int32)
      inputs = self._mask_time(inputs, lengths)
      inputs = self._mask_frequencies(inputs)
    out = self.activation_split_dims_mapping.out
    return self.shard(inputs, out), paddings

  def _mask_time(self, inputs: jax.Array, lengths: jax.Array) -> jax.Array:
    dynamic = self.use_dynamic_time_mask_max_frames
    none = not dynamic and self.time_mask_max_frames == 0
    if none or self.time_mask_max_ratio <= 0 or not self.time_mask_count:
      return inputs
    spans = self._spans(
      lengths,
      masks=self.time_mask_count,
      longest=None if dynamic else self.time_mask_max_frames,
      ratio=self.time_mask_max_ratio,
    )
    counts = jnp.full(lengths.shape, self.time_mask_count, jnp.float32)
    if self.time_masks_per_frame > 0:
      counts = self.time_masks_per_frame * lengths
    kept = ~_covered(inputs.shape[1], *spans, counts)
    return inputs * kept[:, :, jnp.newaxis].astype(inputs.dtype)

  def _mask_frequencies(self, inputs: jax.Array) -> jax.Array:
    rows, _, bins = inputs.shape
    if not self.freq_mask_max_bins or not self.freq_mask_count:
      return inputs
    spans = self._spans(
      jnp.full([rows], bins),
      masks=self.freq_mask_count,
      longest=self.freq_mask_max_bins,
      ratio=1.0,
    )
    counts = jnp.full([rows], self.freq_mask_count, jnp.float32)
    kept = ~_covered(bins, *spans, counts)
    return inputs * kept[:, jnp.newaxis].astype(inputs.dtype)

  def _spans(
    self, ranges: jax.Array, *, masks: int, longest: int | None, ratio: float
  ) -> tuple[jax.Array, jax.Array]:
    """Draws spans, uniformly in length and then in place.

    Args:
      ranges: [B], the spans of an example lie in 0..range.
      masks: M.
      longest: the largest length; None for `ratio` of the range. Lengths are
        at most the latter, but at least that of one position is possible.
      ratio: a fraction of the range.

    Returns:
      Their first positions and their lengths, [B, M].
    """
    ranges = ranges[:, jnp.newaxis]
    shape = ranges.shape[0], masks
    limit = longest if longest is not None else ranges * ratio
    lengths = limit * jax.random.uniform(self.next_prng_key(), shape)
    most = jnp.maximum((ratio * ranges).astype(jnp.int32), 1)
    lengths = jnp.minimum(lengths.astype(jnp.int32), most)
    places = jax.random.uniform(self.next_prng_key(), shape)
    starts = (places * (ranges - lengths + 1)).astype(jnp.int32)
    return starts, lengths


def _covered(
  size: int, starts: jax.Array, lengths: jax.Array, counts: jax.Array
) -> jax.Array:
  """Returns which positions are in one of the first spans, [B, size] bool.

  Args:
    size: number of positions.
    starts: [B, M].
    lengths: [B, M].
    counts: [B], number of spans that count.
  """
  positions = jnp.arange(size)
  ends = (starts + lengths)[..., jnp.newaxis]
  inside = (positions >= starts[..., jnp.newaxis]) & (positions < ends)
  valid = jnp.arange(starts.shape[1]) < counts[:, jnp.newaxis]
  return jnp.any(inside & valid[..., jnp.newaxis], axis=1)
