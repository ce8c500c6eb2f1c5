"""StarNet, translated, against Lingvo's, run for real."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors.bridge.families import starnet_kitti, starnet_waymo
from tests.adaptors.translate import task_parity, tiny_task


def _params(family, **fields):
  params = family.task_params().Set(**fields)
  params.eval.samples_per_summary = 8
  return params


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ('family', 'corners'), [(starnet_kitti, 0.0), (starnet_waymo, 0.5)]
)
def test_twenty_steps(family, corners):
  """With all losses and errors, and the moving statistics of batch norm."""
  params = _params(family, corner_loss_weight=corners)
  batches = [family.batch(seed) for seed in range(20)]
  theirs = task_parity.check(params, batches, static_shapes=True)
  for path, value in theirs.last.items():
    assert np.any(value != theirs.first[path]), path
  assert not theirs.first['classifier.bias.b'].any()


@pytest.mark.slow
def test_one_feature_for_all_anchors_of_a_center():
  """The first version of the model, with other poolings and no norm."""
  starnet = lingvo_runtime.module('lingvo.tasks.car.starnet')
  builder = starnet.Builder()
  params = starnet.ModelV1.Params(
    num_classes=10, num_anchor_bboxes_per_center=12
  ).Set(
    name='starnet',
    cell_featurizer=builder.PaddedMLPMaxFeaturizer(7, [8, 6]),
    localization_regressor=builder.Linear('localization', 6, 12 * 7),
    classifier=builder.Linear('classification', 6, 12 * 10),
    loss_norm_type=starnet.LossNormType.NO_NORM,
  )
  params.eval.samples_per_summary = 8
  batches = [starnet_kitti.batch(seed) for seed in range(3)]
  task_parity.check(params, batches, static_shapes=True)


def test_what_is_refused():
  params = _params(starnet_kitti, oracle_rotation=True)
  with pytest.raises(errors.UserError, match='oracle_rotation .*only False'):
    tiny_task.translate(params)


def test_a_layer_without_translation_is_named():
  starnet = lingvo_runtime.module('lingvo.tasks.car.starnet')
  car_layers = lingvo_runtime.module('lingvo.tasks.car.car_layers')
  group = car_layers.SamplingAndGroupingLayer.Params().Set(name='group')
  featurizer = starnet.Builder()._Seq('feat', group)
  params = _params(starnet_kitti, cell_featurizer=featurizer)
  with pytest.raises(errors.UserError, match='SamplingAndGroupingLayer'):
    tiny_task.translate(params)
