"""The calls of `py_utils` whose results are recorded from Pax."""

import jax.numpy as jnp
import numpy as np

_X = np.linspace(-2, 3, 30, dtype=np.float32).reshape(3, 5, 2)
_Y = np.linspace(1, 4, 24, dtype=np.float32).reshape(3, 4, 2)
_IDS = np.array([[5, 6, 1, 7], [5, 6, 7, 8], [1, 2, 2, 2], [3, 3, 1, 1]])
_PADS = np.array(
  [[0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], np.float32
)
_PADDED = np.array([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]], 'f')


def results(py_utils) -> dict[str, list]:
  """Returns arrays by the name of a call, of this module or of Pax's."""
  x, y, padded = map(jnp.asarray, (_X, _Y, _PADDED))
  ids, pads = jnp.asarray(_IDS), jnp.asarray(_PADS)
  value = jnp.float32(3)
  lowest = py_utils.get_large_negative_number(jnp.float32)
  mask = lowest * jnp.array([0.0, 1.0])
  pad = py_utils.apply_padding
  return {
    'lowest': [lowest, py_utils.get_large_negative_number(jnp.int32)],
    'l2_normalize': [py_utils.l2_normalize(x)],
    'mask': [py_utils.apply_mask_to_logits(x, mask)],
    'lengths': [
      py_utils.sequence_mask([1, 3], 4),
      py_utils.sequence_paddings(jnp.array([[1, 3]]), 4, jnp.int32),
    ],
    'flip': [py_utils.flip_sequence(x, jnp.array([5, 2, 3]))],
    'concat': py_utils.concat_sequences_with_padding(
      x, padded, y, py_utils.sequence_paddings([1, 4, 2], 4)
    ),
    'apply_padding': [
      pad(x, padded[..., None]),
      pad(x, padded[..., None], use_select=False),
      pad(x, padded[..., None], value),
      pad(x, padded[..., None], value, use_select=False),
      pad(x, padded, axis=0),
      pad(x, padded, axis=1),
    ],
    'pad_or_trim_to': [py_utils.pad_or_trim_to(x, [2, 7, 2], 9)],
    'append_eos': [
      *py_utils.append_eos(ids, pads, 1),
      *py_utils.append_eos(ids, pads, 1, extend_if_overflow=False),
      *py_utils.append_eos(ids[:1], pads[:1], 1),
    ],
    'tree_unstack': py_utils.tree_unstack(x, 1),
  }
