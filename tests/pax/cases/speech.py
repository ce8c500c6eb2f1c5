"""Cases of layers and functions for speech."""

import dataclasses

import numpy as np

from tests.pax.layer_cases import Case, FunctionCase, normal, paddings

_FRAMES = normal(3, 12, 6)
_PADDED = paddings(12, 12, 9, 4)
_LOGITS = normal(3, 9, 5, seed=3)
_LABELS = np.array([[1, 2, 2, 4], [3, 1, 0, 0], [4, 4, 4, 4]], np.int32)
_CTC = (_LOGITS, paddings(9, 9, 7, 5), _LABELS, paddings(4, 4, 2, 4))
_PATHS = np.array([[0, 0, 1, 1, 2, 3, 3], [1, 2, 2, 2, 3, 0, 0]], np.int32)


def _augmenter(**fields):
  return lambda n: n.Config(
    n.layers.SpectrumAugmenter, freq_mask_max_bins=3, **fields
  )


def _losses_and_alignments(n):
  losses, found = n.layers.ctc_loss_with_alignments(*_CTC)
  return losses, dataclasses.asdict(found)


CASES = {
  'augmenter': Case(_augmenter(time_mask_max_ratio=0.3), (_FRAMES, _PADDED)),
  'augmenter_static': Case(
    _augmenter(
      use_dynamic_time_mask_max_frames=False,
      time_mask_max_frames=3,
      time_mask_max_ratio=0.5,
      time_mask_count=2,
    ),
    (_FRAMES, _PADDED),
  ),
  'augmenter_per_frame': Case(
    _augmenter(time_mask_max_ratio=0.2, time_masks_per_frame=0.3),
    (_FRAMES, _PADDED),
  ),
  'augmenter_eval': Case(_augmenter(), (_FRAMES, _PADDED), train=False),
  'shifting': Case(
    lambda n: n.Config(
      n.layers.TemporalShifting, shift_range_ms=3.0, sample_rate=1000.0
    ),
    (_FRAMES[..., 0], _PADDED),
  ),
  'ctc': FunctionCase(_losses_and_alignments),
  'forced_alignment': FunctionCase(lambda n: n.layers.forced_alignment(*_CTC)),
  'is_valid_ctc_seq': FunctionCase(
    lambda n: n.layers.is_valid_ctc_seq(*_CTC[1:])
  ),
  'label_alignment': FunctionCase(
    lambda n: n.layers.frame_alignment_to_label_alignment(
      _PATHS, paddings(7, 7, 5)
    )
  ),
}
