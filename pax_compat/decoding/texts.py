"""From decoded tokens to texts, on the host.

Shapes: B batch, T time.
"""

import jax
import numpy as np

from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap


def of_counted_rows(decode_out: NestedMap) -> NestedMap:
  """Returns a decoded batch as numpy arrays, without what only fills it.

  Args:
    decode_out: arrays [B, ...]; examples whose `eval_sample_weights` [B] are 0
      are left out.
  """
  out = jax.tree.map(np.asarray, decode_out)
  if example_rows.WEIGHTS not in out:
    return out
  counted = out[example_rows.WEIGHTS] != 0
  return jax.tree.map(lambda x: x[counted] if x.ndim else x, out)


def after(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Returns each row of `ids` [B, T] without its first `lengths` [B] tokens.

  What is missing at the end is 0.
  """
  source = np.arange(ids.shape[1]) + lengths[:, None]
  moved = np.take_along_axis(ids, np.minimum(source, ids.shape[1] - 1), axis=1)
  return np.where(source < ids.shape[1], moved, 0)


def length_metrics(name: str, out: NestedMap) -> NestedMap:
  """Returns the mean of `decode_lengths`, weighted by the number of rows."""
  lengths = np.asarray(out.decode_lengths, np.float32)
  mean = lengths.mean() if lengths.size else np.float32(0)
  return NestedMap({name: (mean, np.float32(lengths.size))})
