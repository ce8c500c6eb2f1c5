"""CenterPoint for Waymo, in small: points in dynamic voxels, without anchors.

Shapes: B batch, P points, X and Y cells of the grid.
"""

import numpy as np

from adaptors import lingvo_runtime
from tests.adaptors.bridge.families import pillars as pillars_family

_CLASSES, _LASER_FEATURES, _ANGLE_BINS = 4, 3, 4
_GRID = 16
_FEATURES, _CHANNELS = 4, 4
# In meters, in both directions.
_RANGE = 8.0


def task_params():
  """Returns Params of the task."""
  free = lingvo_runtime.module('lingvo.tasks.car.pillars_anchor_free')
  pillars = lingvo_runtime.module('lingvo.tasks.car.pillars')
  optimizer = lingvo_runtime.module('lingvo.core.optimizer')
  p = free.AnchorFreePillarsBase.Params(
    num_classes=_CLASSES,
    num_laser_features=_LASER_FEATURES,
    angle_bin_num=_ANGLE_BINS,
  ).Set(
    name='center_point',
    nms_decoder_type=free.NMSDecoderType.HEATMAP_NMS_DECODER,
    centerness_loss_weight=1.0,
  )
  p.dimensions_loss = free.LaplaceKL.Params()
  p.input_featurizer = pillars.DynamicVoxelizationFeaturizer.Params(
    _LASER_FEATURES, _FEATURES
  ).Set(
    grid_size=(_GRID, _GRID, 1),
    grid_range_x=(-_RANGE, _RANGE),
    grid_range_y=(-_RANGE, _RANGE),
    grid_range_z=(-3, 3),
  )
  builder = pillars.Builder()
  p.backbone = pillars_family.small_backbone(_CHANNELS)
  for detector, dims in (
    ('class_detector', _CLASSES),
    ('centerness_detector', _CLASSES),
    # Locations, dimensions with their scales, and bins with their residuals.
    ('regression_detector', 3 + 2 * 3 + 2 * _ANGLE_BINS),
  ):
    p.Set(**{detector: builder.Detector(detector, 3 * _CHANNELS, dims)})
  p.train.Set(
    optimizer=optimizer.Adam.Params(),
    clip_gradient_norm_to_value=5,
    ema_decay=0.99,
    learning_rate=0.001,
  )
  return p


def batch(seed):
  """Returns eight random scenes of sixty points, some of them padding."""
  rng = np.random.default_rng(seed)
  b, p, out = 8, 60, _GRID // 2

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  places = rng.uniform(-_RANGE, _RANGE, (b, p, 3)) * [1, 1, 0.3]
  cells = b, out, out, 1
  labels = rng.integers(0, _CLASSES, cells, np.int32)
  is_ignored = rng.random(cells) < 0.2
  is_found = ~is_ignored & (labels > 0)
  boxes = normal(*cells, 7)
  boxes[..., 3:6] = 1 + np.abs(boxes[..., 3:6])
  return {
    'lasers.points_xyz': places.astype(np.float32),
    'lasers.points_feature': normal(b, p, _LASER_FEATURES),
    'lasers.points_padding': (
      np.arange(p) >= rng.integers(p // 2, p + 1, (b, 1))
    ).astype(np.float32),
    'anchor_centers': normal(*cells, 3),
    'assigned_gt_labels': labels,
    'assigned_gt_bbox': boxes,
    'assigned_gt_center_ness': rng.random(cells).astype(np.float32),
    'target_predictions': np.clip(normal(*cells, 7), -3, 3),
    'assigned_cls_mask': (~is_ignored).astype(np.float32),
    'assigned_reg_mask': np.float32(
      np.eye(_CLASSES)[labels] * is_found[..., None]
    ),
  }
