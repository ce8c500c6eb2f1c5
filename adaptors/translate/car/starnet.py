"""Translators of Lingvo's StarNet, models that detect objects around centers.

Their predictions are decoded by Lingvo, which suppresses overlapping boxes and
computes average precision; see `adaptors.bridge.searching`.
"""

from typing import Any

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.car import detectors
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView
from pax_compat.layers.models.point_detector import PointDetector

_MODULE = 'lingvo.tasks.car.starnet'
# Fields of the model by those of Lingvo's Params.
_SAME = {
  'num_anchor_bboxes_per_center': 'num_anchors',
  'focal_loss_alpha': 'focal_alpha',
  'focal_loss_gamma': 'focal_gamma',
  'huber_loss_delta': 'huber_delta',
  'loss_weight_localization': 'box_loss_weight',
  'loss_weight_classification': 'class_loss_weight',
  'location_loss_weight': 'location_weight',
  'dimension_loss_weight': 'dimension_weight',
  'rotation_loss_weight': 'rotation_weight',
  'corner_loss_weight': 'corner_weight',
  'squash_rotation_predictions': 'squashes_rotation',
  'direction_aware_rot_loss': 'is_direction_aware',
}
# The children in Lingvo and here.
_CHILDREN = {
  'cell_featurizer': 'featurizer',
  'cell_feature_projector': 'projector',
  'localization_regressor': 'regressor',
  'classifier': 'classifier',
}


@translates(f'{_MODULE}.ModelV1')
def model_v1(view: ParamsView) -> Translated | None:
  """Returns a detector whose anchors share the features of their center."""
  names = 'cell_featurizer', 'localization_regressor', 'classifier'
  parts = {name: registry.translate(view.child(name)) for name in names}
  return _detector(view, parts, centers_as_features=True)


@translates(f'{_MODULE}.ModelV2')
def model_v2(view: ParamsView) -> Translated | None:
  """Returns a detector that has features of each offset from a center."""
  for oracle in ('location', 'dimension', 'rotation', 'classification'):
    view.require(f'oracle_{oracle}', False)
  offsets = view.get('num_anchor_bboxes_offsets')
  templates = _heads(
    features=view.get('cell_feature_dims'),
    projected=view.get('anchor_projected_feature_dims'),
    offsets=offsets,
    anchors=view.get('num_anchor_bboxes_rotations')
    * view.get('num_anchor_bboxes_dimensions'),
    classes=view.get('num_classes'),
  )
  parts = {
    'cell_featurizer': registry.translate(view.child('cell_featurizer')),
    **{
      name: registry.translate(view.adopt(template, name))
      for name, template in templates.items()
    },
  }
  return _detector(view, parts, num_offsets=offsets)


def _heads(
  *, features: int, projected: int, offsets: int, anchors: int, classes: int
) -> dict[str, Any]:
  """Returns the Params of layers that Lingvo's model makes without Params.

  Args:
    features: dims of a center.
    projected: dims of an offset.
    offsets: number of offsets from a center.
    anchors: number of anchor boxes at each offset.
    classes: number of classes.
  """
  init = lingvo_runtime.module('lingvo.core.py_utils').WeightInit
  builder = lingvo_runtime.module(_MODULE).Builder()
  builder.linear_params_init = init.KaimingUniformFanInRelu()
  return {
    'cell_feature_projector': builder.FC(
      'cell_feature_projector', features, offsets * projected
    ),
    'localization_regressor': builder.Linear(
      'localization_regressor', projected, anchors * 7, init.Constant(0.0)
    ),
    # Lingvo's biases start at 0, whatever their initializer.
    'classifier': builder.LinearWithBias(
      'classifier', projected, anchors * classes
    ),
  }


def _detector(
  view: ParamsView, parts: dict[str, Translated | None], **fields
) -> Translated | None:
  """Returns the detector of some children.

  Args:
    view: of the model.
    parts: the children by their name in Lingvo.
    **fields: further fields of the detector.
  """
  detectors.read_decoding(view)
  norm = getattr(view.get('loss_norm_type'), 'name', None)
  if norm not in (None, 'NO_NORM', 'NORM_BY_NUM_POS_PER_CENTER'):
    view.issue('loss_norm_type', f'{norm} is not translated')
  fields |= {own: view.get(name) for name, own in _SAME.items()}
  fields['class_loss_weights'] = tuple(view.get('per_class_loss_weight'))
  fields['normalizes_by_positives'] = norm == 'NORM_BY_NUM_POS_PER_CENTER'
  children = {(name, _CHILDREN[name]): part for name, part in parts.items()}
  return detectors.assembled(PointDetector, children, **fields)
