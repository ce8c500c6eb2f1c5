"""Checkpoints of a task with a user's own optimizer, which is bridged."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from adaptors.checkpoints import exporting, files, importing, task_metadata
from pax_compat import base_layer, errors, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, tiny_task

pytestmark = native_library.NEEDS_LINGVO

_SAVED, _STEPS = 2, 4


def test_slots_and_other_variables_are_carried(tmp_path):
  own = lingvo_runtime.module('tests.adaptors.bridge.own_training')
  params = tiny_task.params(optimizer=own.Sign.Params())
  data = tiny_task.batches()[:_STEPS]
  weights = lingvo_runs.train(params, data, tmp_path)
  original = files.newest(tmp_path / f'ckpt-{_SAVED:08d}')
  assert {'power', 'tiny/first/w/var/Sign'} <= set(original.shapes)

  translated = bridge_task.bridge_parts(params, 'tiny')
  made = program.create(
    translated.config.Instantiate(),
    partitioning.create_mesh(None, None),
    data[0],
  )
  metadata = task_metadata.of(params, translated)
  state = importing.read_state(original, metadata, made, data[0])
  exported = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'exported')
  )
  assert exported.shapes == original.shapes
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name

  for batch in data[_SAVED:]:
    state, _ = made.train_step(state, batch)
  found = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  for path, value in metadata.variables.to_lingvo(found).items():
    parity.assert_close(value, weights[_STEPS][path], 1e-5, path)
    assert np.any(value != weights[_SAVED][path])


def test_variables_of_several_such_optimizers_are_not_told_apart():
  own = lingvo_runtime.module('tests.adaptors.bridge.own_training')
  learner = tiny_task.learner
  params = tiny_task.params(
    learner=[
      learner(optimizer=own.Sign.Params(), bprop_variable_filter='first'),
      learner(
        name='others',
        loss_name='loss',
        optimizer=own.Sign.Params(),
        bprop_variable_exclusion='first',
      ),
    ]
  )
  translated = bridge_task.bridge_parts(params, 'tiny')
  with pytest.raises(errors.UserError, match=r'no weight \(power\)'):
    task_metadata.check(params, translated)
