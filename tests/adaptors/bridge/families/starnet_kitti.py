"""StarNet for KITTI's cars, in small: point clouds around sampled centers.

Shapes: B batch, C centers, P points of a center, A anchor boxes of a center.
"""

import numpy as np

from adaptors import lingvo_runtime

# Lingvo needs the number of centers.
STATIC_SHAPES = True

_CLASSES = 10
_OFFSETS, _ROTATIONS, _DIMENSIONS = 3, 2, 2


def task_params(laser_features=1, gin_layers=((16, 8), (16, 8))):
  """Returns Params of the task.

  Args:
    laser_features: number of features of a point besides its position.
    gin_layers: dimensions of the layers of the point featurizer.
  """
  starnet = lingvo_runtime.module('lingvo.tasks.car.starnet')
  optimizer = lingvo_runtime.module('lingvo.core.optimizer')
  p = starnet.ModelV2.Params(
    _CLASSES,
    num_anchor_bboxes_offsets=_OFFSETS,
    num_anchor_bboxes_rotations=_ROTATIONS,
    num_anchor_bboxes_dimensions=_DIMENSIONS,
    num_laser_features=laser_features,
  ).Set(
    name='sparse_detector',
    cell_feature_dims=(len(gin_layers) + 1) * 8,
    anchor_projected_feature_dims=8,
    dimension_loss_weight=0.3,
    location_loss_weight=3.0,
    loss_weight_classification=1.0,
    loss_weight_localization=3.0,
    rotation_loss_weight=0.3,
  )
  builder = starnet.Builder()
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  builder.linear_params_init = py_utils.WeightInit.KaimingUniformFanInRelu()
  p.cell_featurizer = builder.GINFeaturizerV2(
    'feat', 8, list(map(list, gin_layers)), laser_features
  )
  p.train.Set(
    optimizer=optimizer.Adam.Params(),
    clip_gradient_norm_to_value=5,
    ema_decay=0.99,
    l2_regularizer_weight=1e-4,
    learning_rate=0.001,
  )
  p.eval.samples_per_summary = 0
  return p


def batch(seed, laser_features=1):
  """Returns eight random scenes of four centers with six points each."""
  rng = np.random.default_rng(seed)
  b, c, p, a = 8, 4, 6, _OFFSETS * _ROTATIONS * _DIMENSIONS

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  centers = 10 * normal(b, c, 3)
  counts = rng.integers(0, p + 1, (b, c, 1))  # Some centers have no points.
  labels = rng.integers(0, _CLASSES, (b, c, a), np.int32)
  is_ignored = rng.random((b, c, a)) < 0.2
  anchors = normal(b, c, a, 7)
  anchors[..., 3:6] = 1 + np.abs(anchors[..., 3:6])
  return {
    'cell_center_xyz': centers,
    'cell_points_xyz': centers[:, :, None] + normal(b, c, p, 3),
    'cell_feature': normal(b, c, p, laser_features),
    'cell_points_padding': (np.arange(p) >= counts).astype(np.float32),
    'anchor_bboxes': anchors,
    'anchor_localization_residuals': 0.5 * normal(b, c, a, 7),
    'assigned_gt_labels': labels,
    'assigned_cls_mask': (~is_ignored).astype(np.float32),
    'assigned_reg_mask': (~is_ignored & (labels > 0)).astype(np.float32),
  }


def detection_params():
  """Returns Params of the task for `scenes`, without random pictures.

  They have no moving averages, with which Lingvo would evaluate instead of with
  the weights.
  """
  p = task_params()
  p.train.ema_decay = 0.0
  p.Set(max_nms_boxes=16, nms_iou_threshold=0.5)
  p.output_decoder.laser_sampling_rate = 0.0
  p.eval.samples_per_summary = 8
  return p


def scenes(seed):
  """Returns a batch with what a decoder reads: boxes, camera and identities.

  Every fourth anchor of an offset is a car that is in view.
  """
  scenes = batch(seed)
  anchors = scenes['anchor_bboxes']
  anchors[..., :3] += scenes['cell_center_xyz'][:, :, None]
  anchors[..., 0] += 40
  boxes = anchors.reshape(8, -1, 7)[:, ::4]
  b, n, _ = boxes.shape
  camera = np.array([[300, -400, 0, 0], [150, 0, -400, 0], [1, 0, 0, 0]])
  ones = np.ones((b, n), np.float32)

  def of_rows(x, dtype=np.float32):
    return np.broadcast_to(np.asarray(x, dtype), (b, *np.shape(x)))

  labels, lasers, images = (
    f'decoder_copy.{name}' for name in ('labels', 'lasers', 'images')
  )
  names = [b'%d' % (8 * seed + i) for i in range(b)]
  return scenes | {
    'labels.bboxes_3d_num_points': np.full((b, n), 9, np.int32),
    f'{labels}.source_id': np.array(names),
    f'{labels}.difficulties': np.full((b, n), 3, np.int32),
    f'{labels}.bboxes_3d': boxes,
    f'{labels}.bboxes_3d_mask': ones,
    f'{labels}.unfiltered_bboxes_3d_mask': ones,
    f'{labels}.labels': np.ones((b, n), np.int32),
    f'{lasers}.points_xyz': np.zeros((b, 2, 3), np.float32),
    f'{lasers}.points_padding': np.zeros((b, 2), np.float32),
    f'{images}.velo_to_image_plane': of_rows(camera),
    f'{images}.velo_to_camera': of_rows(np.eye(4)),
    f'{images}.width': of_rows([600], np.int32),
    f'{images}.height': of_rows([300], np.int32),
  }
