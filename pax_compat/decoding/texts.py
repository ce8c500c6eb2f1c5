"""Post-processing of decoded tokens on the host.

Shapes: B batch, T time.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap

# The results that are [B, N, ...] if there are several samples.
_OF_SAMPLES = (
  'output_ids',
  'decode_lengths',
  'original_lengths',
  'logprobs',
  'prefix_ids',
  'prefix_lengths',
)


def without_padding_rows(decode_out: NestedMap) -> NestedMap:
  """Returns a decoded batch as NumPy arrays, without padding rows.

  Args:
    decode_out: arrays [B, ...]; rows whose `eval_sample_weights` [B] are 0 are
      padding.
  """
  out = jax.tree.map(np.asarray, decode_out)
  if example_rows.WEIGHTS not in out:
    return out
  is_example = out[example_rows.WEIGHTS] != 0
  return jax.tree.map(lambda x: x[is_example] if x.ndim else x, out)


def first_samples(
  out: NestedMap, to_strings: Callable[[np.ndarray, np.ndarray], Any]
) -> tuple[NestedMap, list[dict[str, Any]]]:
  """Returns the first of the samples, or hypotheses, of each row.

  Args:
    out: decoded arrays [B, ...], of which those of an algorithm with several
      samples are [B, N, ...].
    to_strings: (ids [R, T], lengths [R]) -> R strings.

  Returns:
    The arrays with [B, ...] of the first sample; and for each row `sampled`,
    the N strings, and `scores` [N] of a beam search, if N is more than 1.
  """
  if out.output_ids.ndim == 2:
    return out, [{} for _ in out.output_ids]
  rows, samples, length = out.output_ids.shape
  first = NestedMap(out)
  for name in _OF_SAMPLES:
    if name in out:
      first[name] = out[name][:, 0]
  if samples == 1:
    return first, [{} for _ in range(rows)]
  strings = to_strings(
    out.output_ids.reshape(-1, length), out.decode_lengths.reshape(-1)
  )
  strings = [str(text) for text in strings]
  fields = [
    {'sampled': strings[row * samples : (row + 1) * samples]}
    for row in range(rows)
  ]
  if 'scores' in out:
    for row, scores in zip(fields, out.scores, strict=True):
      row['scores'] = scores
  return first, fields


def without_prefixes(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Drops the first `lengths` [B] tokens of each row of `ids` [B, T].

  Rows are padded with 0.
  """
  source = np.arange(ids.shape[1]) + lengths[:, None]
  moved = np.take_along_axis(ids, np.minimum(source, ids.shape[1] - 1), axis=1)
  return np.where(source < ids.shape[1], moved, 0)


def length_metrics(name: str, out: NestedMap) -> NestedMap:
  """Returns the mean of `decode_lengths`, weighted by the number of rows."""
  lengths = np.asarray(out.decode_lengths, np.float32)
  mean = lengths.mean() if lengths.size else np.float32(0)
  return NestedMap({name: (mean, np.float32(lengths.size))})
