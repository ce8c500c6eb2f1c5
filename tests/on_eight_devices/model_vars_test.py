"""Tests of restoring a model on other meshes than it was trained on."""

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from pax_compat import checkpoints
from pax_compat.trainer import model_vars, partitioning
from tests.pax_compat.trainer import tiny


def test_a_model_is_restored_on_any_mesh(tmp_path):
  made = tiny.make_program(
    tiny.task(split=True), partitioning.create_mesh(tiny.MESH, tiny.MESH_AXES)
  )
  state = made.init_state(tiny.batch())
  checkpointer = checkpoints.Checkpointer(tmp_path, max_to_keep=1)
  checkpointer.save(0, state, {})
  checkpointer.close()
  stored = checkpoints.StoredCheckpoint(tmp_path)
  wanted = checkpoints.state_paths(state.mdl_vars)
  logits = {}
  for shape in ((8, 1, 1), (1, 2, 4), (1, 1, 1)):
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = partitioning.create_mesh(shape, tiny.MESH_AXES, devices=devices)
    other = tiny.make_program(tiny.task(split=True), mesh)
    found = model_vars.restore(other, stored)
    for path, x in checkpoints.state_paths(found).items():
      np.testing.assert_array_equal(x, wanted[path], path)
      assert x.sharding.mesh == mesh
    logits[shape] = found['params']['lm']['softmax']['logits_ffn']['linear'][
      'w'
    ]
  assert {w.sharding.spec for w in logits.values()} == {P('data', 'mdl')}
