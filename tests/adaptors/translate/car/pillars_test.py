"""CenterPoint, translated, against Lingvo's, run for real."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors.bridge.families import center_point
from tests.adaptors.bridge.families import pillars as pillars_family
from tests.adaptors.translate import task_parity, tiny_task

_POINTS = (
  'grid_num_points',
  'pillar_points',
  'pillar_centers',
  'pillar_locations',
)


def _params(**fields):
  params = center_point.task_params().Set(**fields)
  params.eval.samples_per_summary = 8
  return params


def _check(params, batches, without_gradient=''):
  theirs = task_parity.check(
    params, batches, static_shapes=True, without_gradient=without_gradient
  )
  for path, value in theirs.last.items():
    # Rounding may change what has no gradient, or not.
    if not (without_gradient and path.endswith(without_gradient)):
      assert np.any(value != theirs.first[path]), path


@pytest.mark.exhaustive
def test_twenty_steps_of_voxels_and_centers_and_laplace_loss():
  _check(_params(), [center_point.batch(seed) for seed in range(20)])


@pytest.mark.slow
def test_points_in_pillars_and_a_cross_entropy():
  """Without the logits of centers, and without a norm of the losses."""
  free = lingvo_runtime.module('lingvo.tasks.car.pillars_anchor_free')
  pillars = lingvo_runtime.module('lingvo.tasks.car.pillars')
  bins = 12
  params = _params(
    input_featurizer=pillars.PointsToGridFeaturizer.Params(1, 4),
    regression_detector=pillars.Builder().Detector('reg', 12, 6 + 2 * bins),
    dimensions_loss=free.HuberLoss.Params().Set(delta=0.5),
    dimensions_loss_weight=0.3,
    location_loss_weight=1.5,
    angle_bin_num=bins,
    centerness_loss_weight=0.0,
    classification_loss_fn=free.ClassLossFN.SIGMOID_LOSS,
    loss_norm_type=pillars.LossNormType.NO_NORM,
  )
  _check(params, [_with_pillars(seed) for seed in range(3)])


def _with_pillars(seed):
  """Returns scenes whose points are in pillars."""
  points = pillars_family.batch(seed)
  return center_point.batch(seed) | {name: points[name] for name in _POINTS}


@pytest.mark.slow
def test_all_encodings_and_aggregations_of_voxels():
  """In coarse voxels, of which those with one point are left out."""
  params = _params()
  voxels = params.input_featurizer
  for name, _ in voxels.point_encoder.IterParams():
    if name.startswith('include_'):
      voxels.point_encoder.Set(**{name: True})
  pillars = lingvo_runtime.module('lingvo.tasks.car.pillars')
  voxels.Set(
    min_points_per_voxel=2,
    grid_range_x=(-24, 40),
    aggregation_ops=('sum', 'max', 'mean'),
    featurizer=pillars.Builder().MLPFeaturizer('feat', [15 + 3 + 9, 2]),
  )
  params.backbone = _backbone(6)
  _check(params, [center_point.batch(seed) for seed in range(2)])


def _backbone(inputs):
  """Returns Params of a backbone of one convolution."""
  builder = lingvo_runtime.module('lingvo.tasks.car.pillars').Builder()
  return builder._Conv('c3x3', (3, 3, inputs, 12), 2)


@pytest.mark.slow
def test_points_and_images():
  """With a voxel's points attending to pixels, without random dropout.

  What is added to all keys of a voxel does not change its attention.
  """
  batches = [_with_images(seed) for seed in range(3)]
  _check(_fusion_params(), batches, without_gradient='k_embedding.bn.beta')


def _fusion_params():
  fusion = lingvo_runtime.module('lingvo.tasks.car.deep_fusion')
  builder = fusion.LearnableAlignBuilder(
    lidar_channels=4, image_channels=6, qkv_channels=5
  )
  params = _params(centerness_loss_weight=0.0, backbone=_backbone(4))
  points = params.input_featurizer.Set(
    return_dynamic_voxels=True, grid_range_x=(-24, 40), grid_range_y=(-24, 40)
  )
  params.input_featurizer = fusion.MultiModalFeaturizer.Params().Set(
    pointcloud_featurizer=points,
    # The norm after a rectifier would undo the scale of the norm before it.
    image_featurizer=builder._Conv('image', (3, 3, 3, 6), 2, activation='TANH'),
    fusion=builder.Fusion('fusion'),
    camera_feature_aligner=fusion.DeepFusionAligner.Params().Set(
      q_embedding=builder.LidarEmbedding('q_embedding'),
      k_embedding=builder.ImageEmbedding('k_embedding'),
      v_embedding=builder.ImageEmbedding('v_embedding'),
      attn_dropout=builder.Dropout('attn_dropout', keep_prob=1.0),
      learnable_align_fc=builder.FC('learnable_align_fc'),
    ),
  )
  return params


def _with_images(seed):
  """Returns scenes with images of two cameras, which see most of the points."""
  scenes = center_point.batch(seed)
  rng = np.random.default_rng(seed)
  shape = b, _ = scenes['lasers.points_padding'].shape
  height, width = 8, 12
  images = {
    f'images.{camera}.image': rng.normal(size=(b, height, width, 3))
    for camera in ('FRONT', 'SIDE')
  }
  where = rng.uniform(size=(*shape, 3)) * [width, height, 1]
  projected = {
    'points_in_best_camera': where,
    'mask': rng.random(shape) < 0.8,
  }
  fields = images | {
    f'cell_center_projected.{name}': x for name, x in projected.items()
  }
  return scenes | {
    'cell_center_projected.cameras_idx': rng.integers(0, 2, shape, np.int32),
    **{name: np.asarray(x, np.float32) for name, x in fields.items()},
  }


def test_another_alignment_of_images_is_refused():
  fusion = lingvo_runtime.module('lingvo.tasks.car.deep_fusion')
  params = _fusion_params()
  params.input_featurizer.camera_feature_aligner = (
    fusion.MultiPointsAligner.Params()
  )
  with pytest.raises(errors.UserError, match='MultiPointsAligner is not'):
    tiny_task.translate(params)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (
      lambda p: p.input_featurizer.Set(return_dynamic_voxels=True),
      'return_dynamic_voxels .*only False',
    ),
    (
      lambda p: p.dimensions_loss.Set(num_params_per_prediction=3),
      'num_params_per_prediction .*only 2',
    ),
  ],
)
def test_what_is_refused(change, message):
  params = _params()
  change(params)
  with pytest.raises(errors.UserError, match=message):
    tiny_task.translate(params)
