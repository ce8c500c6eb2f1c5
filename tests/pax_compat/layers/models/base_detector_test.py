"""Tests of what all detectors share."""

import jax
import numpy as np
import pytest

from tests.pax_compat.layers.models import (
  grid_detector_test,
  point_detector_test,
)


@pytest.mark.parametrize(
  ('module', 'fields'),
  [(grid_detector_test, {}), (point_detector_test, {'corner_weight': 1.0})],
)
def test_padding_rows_do_not_count(module, fields):
  model, batch = module.detector(**fields), module.batch()
  variables = model.init(jax.random.key(0), batch)
  first = jax.tree.map(lambda x: x[:1], batch)
  wanted, _ = model.apply(variables, first)
  batch.eval_sample_weights = np.array([1.0, 0.0], np.float32)
  found, _ = model.apply(variables, batch)
  assert found.keys() == wanted.keys()
  for name, (value, weight) in wanted.items():
    assert found[name][0] == pytest.approx(float(value), rel=1e-5), name
    assert found[name][1] == weight == 1
  assert wanted['loss'][0] > 0
