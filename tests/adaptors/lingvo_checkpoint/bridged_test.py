"""Checkpoints of a bridged task, with variables that are not trained."""

import numpy as np

from adaptors.bridge import task as bridge
from adaptors.checkpoints import exporting, files, importing, task_metadata
from adaptors.lingvo_parity.batches import nested
from pax_compat import base_layer, checkpoints, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.bridge.families import lenet5_batch_norm
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity

pytestmark = native_library.NEEDS_LINGVO

_SAVED, _STEPS = 3, 6


def test_moving_statistics_are_carried(tmp_path):
  params = lenet5_batch_norm.task_params()
  params.task_global_step = True  # A variable of int64.
  params.train.Set(ema_decay=0.9, ema_decay_moving_vars=True)
  data = [lenet5_batch_norm.batch(seed) for seed in range(_STEPS)]
  values = lingvo_runs.train(params, data, tmp_path)
  translated = bridge.bridge_task(params, 'lenet5')
  first = nested(data[0])
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), first
  )
  metadata = task_metadata.of(params, translated)
  original = files.newest(tmp_path / f'ckpt-{_SAVED:08d}')
  state = importing.read_state(original, metadata, made, first)

  moving = [v for v in metadata.variables if not v.is_trainable]
  assert {'moving_mean', 'moving_variance'} <= {
    v.theta[0].rpartition('.')[2] for v in moving
  }
  arrays = checkpoints.state_paths(state)
  for variable in metadata.variables:
    kind = 'params' if variable.is_trainable else 'non_trainable'
    path = f'mdl_vars.{kind}.{variable.jax.replace("/", ".")}'
    [theta] = variable.theta
    np.testing.assert_array_equal(arrays[path], values[_SAVED][theta], path)
  assert int(arrays['mdl_vars.non_trainable.global_step']) == _SAVED
  exported = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'exported')
  )
  assert exported.shapes == original.shapes
  assert exported.dtypes == original.dtypes
  wide = [name for name, dtype in original.dtypes.items() if dtype == np.int64]
  assert len(wide) == 2
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name

  for batch in data[_SAVED:]:
    state, _ = made.train_step(state, nested(batch))
  for variable in metadata.variables:
    kind = (
      base_layer.PARAMS if variable.is_trainable else base_layer.NON_TRAINABLE
    )
    ours = learners.by_path(state.mdl_vars[kind])[variable.jax]
    [theta] = variable.theta
    parity.assert_close(ours, values[_STEPS][theta], 1e-4, theta)
