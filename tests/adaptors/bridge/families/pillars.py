"""PointPillars for KITTI, in small: pillars of points on a grid, convolved.

Shapes: B batch, P pillars, N points of a pillar, X and Y cells of the grid.
"""

import numpy as np

from adaptors import lingvo_runtime

_ANCHORS, _CLASSES = 2, 4
_GRID = 16
_FEATURES, _CHANNELS = 4, 4


def task_params():
  """Returns Params of the task."""
  pillars = lingvo_runtime.module('lingvo.tasks.car.pillars')
  p = pillars.ModelV1.Params(num_anchors=_ANCHORS, num_classes=_CLASSES)
  p.Set(name='pillars', direction_classifier_weight=0.2)
  p.input_featurizer = pillars.PointsToGridFeaturizer.Params(1, _FEATURES)
  builder = pillars.Builder()
  p.backbone = small_backbone(_CHANNELS)
  for detector, dims in (
    ('class_detector', _CLASSES),
    ('regression_detector', 7),
    ('direction_classifier', 2),
  ):
    p.Set(
      **{detector: builder.Detector(detector, 3 * _CHANNELS, _ANCHORS * dims)}
    )
  p.train.learning_rate = 0.001
  return p


class _Sixteenth:
  """Multiplies a number of channels to an integer, for Lingvo's builder."""

  def __mul__(self, channels):
    return channels // 16


def small_backbone(channels):
  """Returns Params of a backbone of fewer layers and channels than usual.

  Args:
    channels: of each of its three outputs. It has four inputs, not 64.
  """
  pillars = lingvo_runtime.module('lingvo.tasks.car.pillars')

  class Builder(pillars.Builder):
    def _Block(self, name, stride, repeats, idims, odims, activation=None):
      shape = 3, 3, idims, odims
      return self._Seq(
        name,
        self._Conv('c3x3', shape, stride, activation=activation),
        self._Fetch('final'),
      )

  return Builder().Backbone(channels, channel_multiplier=_Sixteenth())


def batch(seed):
  """Returns eight random scenes of twelve pillars of at most five points."""
  rng = np.random.default_rng(seed)
  b, p, n, xy, out = 8, 12, 5, _GRID, _GRID // 2
  cells = np.stack([rng.permutation(xy * xy)[:p] for _ in range(b)])
  counts = rng.integers(1, n + 1, (b, p))
  # The remaining pillars are empty, and are in the first cell.
  cells[:, -2:], counts[:, -2:] = 0, 0
  locations = np.stack(
    [cells // xy, cells % xy, np.zeros_like(cells)], axis=-1
  ).astype(np.int32)
  on_grid = np.zeros((b, xy, xy, 1), np.int32)
  rows = np.arange(b)[:, None]
  on_grid[(rows, *np.moveaxis(locations, -1, 0))] = counts
  is_point = np.arange(n) < counts[..., None]
  points = rng.normal(size=(b, p, n, 4)) * is_point[..., None]
  return {
    'grid_num_points': on_grid,
    'pillar_points': points.astype(np.float32),
    'pillar_centers': locations[:, :, None].astype(np.float32),
    'pillar_locations': locations,
    **_anchors(rng, (b, out, out, 1, _ANCHORS)),
  }


def _anchors(rng, shape):
  """Returns random anchor boxes, with targets for each."""
  labels = rng.integers(0, _CLASSES, shape, np.int32)
  is_ignored = rng.random(shape) < 0.2
  boxes = rng.normal(size=(*shape, 7)).astype(np.float32)
  boxes[..., 3:6] = 1 + np.abs(boxes[..., 3:6])
  return {
    'anchor_bboxes': boxes,
    'assigned_gt_bbox': boxes[..., ::-1].copy(),
    'anchor_localization_residuals': rng.normal(size=(*shape, 7)).astype(
      np.float32
    ),
    'assigned_gt_labels': labels,
    'assigned_cls_mask': (~is_ignored).astype(np.float32),
    'assigned_reg_mask': (~is_ignored & (labels > 0)).astype(np.float32),
  }
