"""Cases of functions that Pax's layers and models call."""

import jax
import numpy as np

from tests.pax.layer_cases import FunctionCase, normal

_X = normal(2, 4, 3)
_PADDINGS = np.float32([[0, 0, 0, 1], [0, 0, 1, 1]])
_PADDING = _PADDINGS[..., None]
_SOURCE = normal(2, 5, 3)
_SOURCE_PADDINGS = np.float32([[0, 0, 0, 1, 1], [0] * 5])
_LOGITS = normal(2, 4, 6)
_CODES = np.int32([[[0, 3], [1, 3], [1, 2], [0, 0]], [[2, 1]] * 4])


def _segments(*ids: list[list[int]]) -> np.ndarray:
  """Returns the additive mask [B, 1, T, S] of other segments."""
  targets, sources = np.int32(ids[0]), np.int32(ids[-1])
  others = targets[:, None, :, None] != sources[:, None, None, :]
  return np.where(others, np.float32(-0.7 * np.finfo(np.float32).max), 0)


_OWN = _segments([[1, 1, 2, 2], [1, 2, 2, 0]])
_CROSS = _segments([[1, 1, 2, 2], [1, 2, 2, 0]], [[1, 1, 2, 2, 2], [1] * 5])


def _masks(*args, step: str = 'fprop', **named) -> FunctionCase:
  """Returns a case of masks as fractions of the largest number."""

  def call(n):
    function = getattr(n.layers, f'compute_attention_masks_for_{step}')
    masks = function(*args, **named)
    return jax.tree.map(lambda x: x / np.finfo(np.float32).max, masks)

  return FunctionCase(call)


CASES = {
  'masks_of_paddings': _masks(_X, _PADDINGS),
  'masks_causal': _masks(_X, _PADDINGS, causal_attention=True),
  'masks_packed': _masks(_X, _PADDINGS, segment_mask=_OWN),
  'masks_folded': _masks(
    _X,
    causal_attention=True,
    segment_mask=_OWN,
    fold_padding_with_segment_mask=True,
  ),
  'masks_cross': _masks(
    _X,
    _PADDINGS,
    cross_inputs=_SOURCE,
    cross_paddings=_SOURCE_PADDINGS,
    cross_segment_mask=_CROSS,
  ),
  'masks_step': _masks(
    2,
    4,
    step='extend_step',
    segment_mask=_OWN[:, :, 2],
    cross_paddings=_SOURCE_PADDINGS,
    cross_segment_mask=_CROSS[:, :, 2],
  ),
  'projected': FunctionCase(
    lambda n: n.layers.project_last_dim(_X, normal(3, 2))
  ),
  'moments': FunctionCase(
    lambda n: n.layers.compute_moments(_X, _PADDING, [0, 1], keepdims=True)
  ),
  'cumulative_moments': FunctionCase(
    lambda n: n.layers.compute_moments(
      _X, _PADDING, [2], cumulative_axis=1, keepdims=True
    )
  ),
  'stats': FunctionCase(lambda n: n.layers.compute_stats(_X, _PADDING)),
  'codes': FunctionCase(
    lambda n: n.layers.batch_pplx_entropy_from_codes(
      _CODES, 4, paddings=_PADDINGS
    )
  ),
  'coverage': FunctionCase(
    lambda n: n.layers.batch_codebook_coverage(_CODES, 4, paddings=_PADDINGS)
  ),
  'top_k_of_ids': FunctionCase(
    lambda n: n.layers.top_k_accuracy(
      3, _LOGITS, _CODES[..., 0], weights=1 - _PADDINGS
    )
  ),
  'top_k_of_probs': FunctionCase(
    lambda n: n.layers.top_k_accuracy(2, _LOGITS, label_probs=_LOGITS)
  ),
}
