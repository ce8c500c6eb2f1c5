"""Tests of `PointDetector`; its numbers are held against Lingvo's elsewhere."""

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import linears
from pax_compat.layers.graph import arguments
from pax_compat.layers.models.point_detector import PointDetector
from pax_compat.nested_map import NestedMap

_ANCHORS, _CLASSES = 2, 3


def detector(**fields):
  return PointDetector.config(
    **{
      'featurizer_tpl': arguments.Apply.config(fn=_features),
      'regressor_tpl': linears.Linear.config(
        input_dims=4, output_dims=_ANCHORS * 7
      ),
      'classifier_tpl': linears.Linear.config(
        input_dims=4, output_dims=_ANCHORS * _CLASSES
      ),
      'num_anchors': _ANCHORS,
      'class_loss_weights': (0.0, 1.0, 2.0),
      **fields,
    }
  ).Instantiate()


def _features(points):
  return points.features.sum(-2)


def batch(rows=2):
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=(rows, 3, *shape)).astype(np.float32)

  anchors = np.abs(normal(_ANCHORS, 7))
  ones = np.ones((rows, 3, _ANCHORS), np.float32)
  return NestedMap(
    cell_center_xyz=normal(3),
    cell_points_xyz=normal(5, 3),
    cell_feature=normal(5, 1),
    cell_points_padding=np.zeros((rows, 3, 5), np.float32),
    anchor_bboxes=anchors,
    anchor_localization_residuals=normal(_ANCHORS, 7),
    assigned_gt_labels=rng.integers(0, _CLASSES, (rows, 3, _ANCHORS)),
    assigned_cls_mask=ones,
    assigned_reg_mask=ones,
  )


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'num_anchors': 3}, 'num_anchors is 3, and the batch has 2'),
    ({'class_loss_weights': (0.0, 1.0)}, 'has 2 classes, and the classifier 3'),
  ],
)
def test_settings_that_do_not_fit(fields, message):
  with pytest.raises(errors.UserError, match=message):
    detector(**fields).init(jax.random.key(0), batch())
