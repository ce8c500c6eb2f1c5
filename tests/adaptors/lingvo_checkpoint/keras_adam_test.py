"""Checkpoints of AdamV2, which Lingvo trains with the Adam of older Kerases.

With Keras 3 it does not run: its Adam refuses Lingvo's learning rates. The
older optimizer is still in the package `tf_keras`.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.checkpoints import exporting, files, importing, task_metadata
from pax_compat import base_layer, errors, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, tiny_task

pytestmark = native_library.NEEDS_LINGVO

_SAVED, _STEPS = 3, 5


@pytest.fixture(autouse=True)
def older_keras(monkeypatch):
  """Makes Lingvo's AdamV2 create the older optimizer."""
  tf_keras = pytest.importorskip('tf_keras')
  optimizer = lingvo_runtime.module('lingvo.core.optimizer')
  adam = tf_keras.optimizers.legacy.Adam

  def made(self, lr):
    p = self.params
    return adam(lr, p.beta1, p.beta2, p.epsilon, name=p.name)

  monkeypatch.setattr(optimizer.AdamV2, 'GetOptimizer', made)


def _adam(**fields):
  return tiny_task.optimizer('AdamV2', **fields)


_TRAIN = {
  'one': lambda: dict(optimizer=_adam(beta1=0.8)),
  'accumulated': lambda: dict(
    optimizer=tiny_task.optimizer(
      'Accumulator', accum_steps=2, optimizer_tpl=_adam()
    )
  ),
  # With an Adam of TensorFlow between them, of the same name.
  'learners': lambda: dict(
    learner=[
      tiny_task.learner(optimizer=_adam(), bprop_variable_filter='first'),
      tiny_task.learner(
        name='second',
        loss_name='loss',
        optimizer=tiny_task.optimizer('Adam'),
        bprop_variable_filter='second',
      ),
      tiny_task.learner(
        name='others',
        loss_name='loss',
        optimizer=_adam(beta2=0.99),
        bprop_variable_filter='emb',
      ),
    ]
  ),
}


def _imported(params, batch, checkpoint):
  """Returns the metadata, the program and the state of a checkpoint."""
  translated = tiny_task.translate(params)
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), batch
  )
  metadata = task_metadata.of(params, translated)
  state = importing.read_state(checkpoint, metadata, made, batch)
  return metadata, made, state


def _check_same(found, original):
  assert found.shapes == original.shapes
  assert found.dtypes == original.dtypes
  for name in original.shapes:
    assert found.read(name).tobytes() == original.read(name).tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize('kind', _TRAIN)
def test_to_and_fro(kind, tmp_path):
  params = tiny_task.params(**_TRAIN[kind]())
  data = tiny_task.batches([1.0, 3.0, 0.5, 2.0, 1.5])
  weights = lingvo_runs.train(params, data, tmp_path)
  original = files.newest(tmp_path / f'ckpt-{_SAVED:08d}')
  metadata, made, state = _imported(params, data[0], original)
  # By the names that a graph gives, and by those of the original.
  for folder, of in (('new', None), ('back', original)):
    prefix = exporting.write(state, metadata, tmp_path / folder, of)
    _check_same(files.TensorflowCheckpoint(prefix), original)
  for batch in data[_SAVED:-1]:
    state, _ = made.train_step(state, batch)
  restored = exporting.write(state, metadata, tmp_path / 'new')
  state, _ = made.train_step(state, data[-1])
  found = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  for path, value in metadata.variables.to_lingvo(found).items():
    parity.assert_close(value, weights[_STEPS][path], 1e-5, path)
  again = lingvo_runs.train(
    params, data[-1:], tmp_path / 'new', restored=restored
  )
  for path, value in again[1].items():
    parity.assert_close(value, weights[_STEPS][path], 1e-5, path)


@pytest.mark.slow
@pytest.mark.parametrize('version', ['V1', 'V2'])
def test_what_eager_mode_wrote(version, tmp_path):
  params = tiny_task.params(**_TRAIN['one']())
  batch = tiny_task.batches()[0]
  weights, step = lingvo_runs.train_eagerly(params, batch, tmp_path, version)
  metadata, _, state = _imported(params, batch, files.newest(tmp_path))
  assert int(state.step) == step
  adam = state.opt_state.optimizer[0][1]
  assert int(adam.count) == 2
  found = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  for path, value in metadata.variables.to_lingvo(found).items():
    np.testing.assert_array_equal(value, weights[path])
  for moments in (adam.mu, adam.nu):
    for path, value in learners.by_path(moments).items():
      assert np.any(np.asarray(value)), path


@pytest.mark.slow
def test_another_setting_is_an_error(tmp_path):
  data = tiny_task.batches()[:1]
  lingvo_runs.train(tiny_task.params(**_TRAIN['one']()), data, tmp_path)
  other = tiny_task.params(optimizer=_adam(beta1=0.9))
  with pytest.raises(
    errors.UserError, match=r'beta_1 is 0\.8.*experiment 0\.9'
  ):
    _imported(other, data[0], files.newest(tmp_path))
