"""Post-processing of decoded tokens on the host.

Shapes: B batch, T time.
"""

import jax
import numpy as np

from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap


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
