"""Translators of Lingvo's CenterPoint and DeepFusion, and of their layers.

Their predictions are decoded by Lingvo, as those of `starnet`.
"""

from adaptors.translate import registry
from adaptors.translate.builder.builder_parts import (
  translate_part,
  translates_part,
)
from adaptors.translate.car import detectors
from adaptors.translate.layers.basic_layers import same_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.convolutions import conv
from pax_compat.layers.convolutions.transposed_convolutions import (
  TransposedConv2D,
)
from pax_compat.layers.detection import target_losses, voxels
from pax_compat.layers.detection.camera_fusion import CameraFusion
from pax_compat.layers.detection.pillars import PillarFeaturizer
from pax_compat.layers.models.grid_detector import GridDetector

_CAR = 'lingvo.tasks.car'
_LAYERS = 'lingvo.core.layers'
# Fields of the model by those of Lingvo's Params.
_SAME = {
  'grid_size_z': 'grid_size_z',
  'angle_bin_num': 'num_angle_bins',
  'focal_loss_alpha': 'focal_alpha',
  'focal_loss_gamma': 'focal_gamma',
  'localization_loss_weight': 'box_loss_weight',
  'classification_loss_weight': 'class_loss_weight',
  'centerness_loss_weight': 'centerness_loss_weight',
  'location_loss_weight': 'location_weight',
  'rotation_loss_weight': 'rotation_weight',
  'corner_loss_weight': 'corner_weight',
}
# The children in Lingvo and here.
_CHILDREN = {
  'input_featurizer': 'featurizer',
  'backbone': 'backbone',
  'class_detector': 'classifier',
  'regression_detector': 'regressor',
  'centerness_detector': 'centerness',
  'location_loss': 'location_loss',
  'dimensions_loss': 'dimension_loss',
}
# The layers of an aligner of cameras in Lingvo and here.
_ALIGNER = {
  'q_embedding': 'query',
  'k_embedding': 'key',
  'v_embedding': 'value',
  'attn_dropout': 'dropout',
  'learnable_align_fc': 'output',
}
# The encodings of points by the switches of Lingvo's.
_ENCODINGS = {
  'include_xyz_norm_by_centroid': voxels.CENTERED,
  'include_features': voxels.FEATURES,
  'include_centroid': voxels.CENTROID,
  'include_centers': voxels.CENTER,
  'include_xyz_norm_by_voxel_center': voxels.FROM_CENTER,
  'include_xyz': voxels.POSITION,
  'include_covariance': voxels.COVARIANCE,
}


@translates_part(f'{_LAYERS}.Conv2DLayerNoPadding')
def conv_2d(view: ParamsView) -> Translated:
  """Returns a convolution of images, without paddings of rows."""
  config = conv.Conv2D.config(
    filter_shape=tuple(view.get('filter_shape')),
    filter_stride=tuple(view.get('filter_stride')),
    dilations=tuple(view.get('dilations')),
    padding=view.get('padding'),
    tf_equivalent_padding=True,
    kernel_init=same_init(view, 'params_init'),
  )
  return Translated(config, VariableMap([Variable(('w',), 'w')]))


@translates_part(f'{_LAYERS}.DeconvLayer')
def deconv(view: ParamsView) -> Translated:
  """Returns a transposed convolution."""
  config = TransposedConv2D.config(
    filter_shape=tuple(view.get('filter_shape')),
    filter_stride=tuple(view.get('filter_stride')),
    kernel_init=same_init(view, 'params_init'),
  )
  return Translated(config, VariableMap([Variable(('w',), 'w')]))


@translates(f'{_CAR}.pillars.PointsToGridFeaturizer')
def pillar_featurizer(view: ParamsView) -> Translated | None:
  """Returns a featurizer of points that the input has sorted into pillars."""
  view.get('num_laser_features')
  featurizer = registry.translate(view.child('featurizer'))
  if featurizer is None:
    return None
  return Translated(
    PillarFeaturizer.config(featurizer_tpl=featurizer.config),
    featurizer.variables.under('featurizer', 'featurizer'),
  )


@translates(f'{_CAR}.car_layers.PointEncoder')
def point_encoder(view: ParamsView) -> tuple[str, ...]:
  """Returns the encodings of a point."""
  view.base_fields()
  view.get('params_init')
  return tuple(own for name, own in _ENCODINGS.items() if view.get(name))


@translates(f'{_CAR}.pillars.DynamicVoxelizationFeaturizer')
def voxel_featurizer(view: ParamsView) -> Translated | None:
  """Returns a featurizer that sorts points into voxels."""
  view.require('return_dynamic_voxels', False)
  view.get('num_laser_features')
  encodings = registry.translate(view.child('point_encoder'))
  featurizer = registry.translate(view.child('featurizer'))
  fields = dict(
    grid_size=tuple(view.get('grid_size')),
    grid_ranges=tuple(tuple(view.get(f'grid_range_{axis}')) for axis in 'xyz'),
    min_points_per_voxel=view.get('min_points_per_voxel'),
    aggregations=tuple(view.get('aggregation_ops')),
  )
  if encodings is None or featurizer is None:
    return None
  return Translated(
    voxels.VoxelFeaturizer.config(
      encodings=encodings, featurizer_tpl=featurizer.config, **fields
    ),
    featurizer.variables.under('featurizer', 'featurizer'),
  )


@translates(f'{_CAR}.deep_fusion.MultiModalFeaturizer')
def camera_fusion(view: ParamsView) -> Translated | None:
  """Returns a featurizer of points and images; only voxels may attend."""
  aligner = view.child('camera_feature_aligner')
  if aligner.params.cls.__name__ != 'DeepFusionAligner':
    view.issue(
      'camera_feature_aligner',
      f'{aligner.params.cls.__name__} is not translated, only'
      ' DeepFusionAligner',
    )
    return None
  aligner.base_fields()
  aligner.get('params_init')
  # Lingvo's layer needs it to be set; here it is always returned.
  points = view.child('pointcloud_featurizer', return_dynamic_voxels=False)
  parts = {
    ('pointcloud_featurizer', 'points'): registry.translate(points),
    ('image_featurizer', 'images'): registry.translate(
      view.child('image_featurizer')
    ),
    ('fusion', 'fusion'): registry.translate(view.child('fusion')),
  }
  for name, own in _ALIGNER.items():
    part = translate_part(aligner.child(name))
    parts[f'camera_feature_aligner.{name}', own] = part
  aligner.finish()
  fields = dict(camera_names=tuple(view.get('camera_names')))
  return detectors.assembled(CameraFusion, parts, **fields)


@translates(f'{_CAR}.pillars_anchor_free.HuberLoss')
def huber_loss(view: ParamsView) -> Translated:
  view.get('params_init')  # It has no weights.
  view.require('num_params_per_prediction', 1)
  return Translated(target_losses.HuberLoss.config(delta=view.get('delta')))


@translates(f'{_CAR}.pillars_anchor_free.LaplaceKL')
def laplace_loss(view: ParamsView) -> Translated:
  view.get('params_init')  # It has no weights.
  view.require('num_params_per_prediction', 2)
  return Translated(
    target_losses.LaplaceLoss.config(
      target_scale=view.get('targets_scale'), min_scale=view.get('epsilon')
    )
  )


@translates(f'{_CAR}.pillars_anchor_free.AnchorFreePillarsBase')
def anchor_free(view: ParamsView) -> Translated | None:
  """Returns a detector in the cells of a grid."""
  detectors.read_decoding(view, 'nms_decoder_type', 'heatmap_nms_kernel_size')
  view.get('num_laser_features')
  fields = {own: view.get(name) for name, own in _SAME.items()}
  weight = view.get('dimensions_loss_weight')
  fields |= dict(
    class_loss_weights=tuple(view.get('per_class_loss_weight')),
    dimension_weight=fields['location_weight'] if weight is None else weight,
    is_focal=view.get('classification_loss_fn').name == 'FOCAL_SIGMOID_LOSS',
    normalizes_by_positives=view.get('loss_norm_type').name
    == 'NORM_BY_NUM_POSITIVES',
  )
  names = list(_CHILDREN)
  if not fields['centerness_loss_weight'] > 0:
    view.get('centerness_detector')
    names.remove('centerness_detector')
  children = {
    (name, _CHILDREN[name]): registry.translate(view.child(name))
    for name in names
  }
  return detectors.assembled(GridDetector, children, **fields)
