"""Tests of `GridDetector`; its numbers are held against Lingvo's elsewhere."""

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import linears
from pax_compat.layers.graph import arguments
from pax_compat.layers.models.grid_detector import GridDetector
from pax_compat.nested_map import NestedMap

_CLASSES, _BINS, _GRID = 3, 2, (4, 4, 1)


def _linear(outputs):
  return linears.Linear.config(input_dims=2, output_dims=outputs)


def detector(**fields):
  return GridDetector.config(
    **{
      'featurizer_tpl': arguments.Apply.config(fn=lambda batch: batch.cells),
      'backbone_tpl': arguments.Select.config(),
      'classifier_tpl': _linear(_CLASSES),
      'regressor_tpl': _linear(6 + 2 * _BINS),
      'centerness_tpl': _linear(_CLASSES),
      'centerness_loss_weight': 0.5,
      'num_angle_bins': _BINS,
      'class_loss_weights': (0.0, 1.0, 2.0),
      **fields,
    }
  ).Instantiate()


def batch(rows=2):
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=(rows, *_GRID, *shape)).astype(np.float32)

  return NestedMap(
    cells=normal(2)[..., 0, :],
    anchor_centers=normal(3),
    target_predictions=normal(7),
    assigned_gt_labels=rng.integers(0, _CLASSES, (rows, *_GRID)),
    assigned_gt_center_ness=np.abs(normal()),
    assigned_cls_mask=np.ones((rows, *_GRID), np.float32),
    assigned_reg_mask=np.ones((rows, *_GRID, _CLASSES), np.float32),
  )


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'grid_size_z': 2}, r'make a grid \[2, 4, 4, 2\], and .* \[2, 4, 4, 1\]'),
    ({'num_angle_bins': 3}, 'regressor_tpl has 10 outputs; expected 12'),
    ({'class_loss_weights': (0.0, 1.0)}, 'classifier_tpl has 3 outputs'),
  ],
)
def test_settings_that_do_not_fit(fields, message):
  with pytest.raises(errors.UserError, match=message):
    detector(**fields).init(jax.random.key(0), batch())
