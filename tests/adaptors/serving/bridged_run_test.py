"""A run that is bridged to Lingvo, exported for one shape and platform."""

import logging

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import model as bridged_model
from adaptors.serving import saved_model
from pax_compat import checkpoints, errors, inference
from pax_compat.inference import exporting
from tests.pax_compat import trainer_runs


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp('bridged') / 'run'
  trainer_runs.train(
    folder,
    '--attr=NUM_LAYERS=1',
    '--attr=MAX_STEPS=1',
    '--attr=MODEL_DIM=16',
    '--attr=HIDDEN_DIM=32',
    '--translation=bridge',
    exp=trainer_runs.LINGVO,
  )
  return inference.load(folder)


@pytest.mark.slow
def test_the_exported_model_predicts_the_same(model, tmp_path, caplog):
  batch = next(model.batches())
  named = bridged_model.BridgedModel.named_predictions
  wanted = checkpoints.state_paths(named(model.predict(batch)))
  with caplog.at_level(logging.WARNING):
    model.export(tmp_path / 'exported')
  assert 'for one shape: batches of 16 rows, on cpu' in caplog.text
  exported = exporting.open_folder(tmp_path / 'exported')
  assert exported.inputs['ids'] == {'shape': [16, 256], 'dtype': 'int32'}
  fields = {name: batch[name] for name in exported.inputs}
  found = exported.predict(fields)
  assert found.keys() == wanted.keys() >= {'loss', 'loss_weight', 'log_pplx'}
  for name, value in wanted.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
  with pytest.raises(errors.UserError, match=r'expected \[16\]'):
    exported.predict({name: x[:3] for name, x in fields.items()})

  saved_model.write(tmp_path / 'exported', tmp_path / 'served')
  signature = saved_model.open_saved_model(tmp_path / 'served')
  tf = lingvo_runtime.tensorflow()
  served = signature(**{name: tf.constant(x) for name, x in fields.items()})
  for name, value in wanted.items():
    np.testing.assert_allclose(served[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_it_is_exported_for_one_platform(model, tmp_path):
  with pytest.raises(errors.UserError, match='is exported for one platform'):
    model.export(tmp_path / 'exported', platforms=['cpu', 'tpu'])
