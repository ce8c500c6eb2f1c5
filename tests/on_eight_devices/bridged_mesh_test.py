"""A bridged Lingvo task on the mesh of its Params, of eight devices."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from adaptors.bridge import task as bridge_task
from adaptors.lingvo_parity import our_side
from pax_compat import errors, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import tiny_task

_STEPS = 3


def _params(mesh):
  """Returns Params of a task whose first layer is split over both axes."""
  params = tiny_task.params(optimizer=tiny_task.optimizer('Adam'))
  params.device_mesh = mesh
  params.emb.Set(vocab_size=8, embedding_dim=8)
  params.first.Set(input_dim=8, output_dim=8, weight_split_dims_mapping=[0, 1])
  # Lingvo itself splits no weight that regularization skips.
  params.second.Set(
    input_dim=8, weight_split_dims_mapping=[1, -1], skip_lp_regularization=None
  )
  return params


def _train(config, mesh, batches):
  """Returns the losses, and the shapes of each weight and of its shards."""
  made = program.create(config.Instantiate(), mesh, batches[0])
  state, losses = made.init_state(batches[0]), []
  for batch in batches:
    put = partitioning.global_batch(batch, partitioning.batch_sharding(mesh))
    state, outputs = made.train_step(state, put)
    losses.append(float(outputs['loss']))
  moments = state.opt_state.optimizer[0][1].mu
  shapes = [
    {
      path: (x.shape, x.addressable_shards[0].data.shape)
      for path, x in learners.by_path(tree).items()
    }
    for tree in (state.mdl_vars['params'], moments)
  ]
  return losses, shapes


@pytest.mark.slow
def test_weights_are_split_as_in_the_params():
  batches = tiny_task.batches([1.0] * _STEPS)
  # Of as many rows as shards.
  batches = [jax.tree.map(lambda x: np.repeat(x, 2, 0), b) for b in batches]
  params = _params(np.arange(8).reshape([2, 4]))
  config = bridge_task.translate(params, 'tiny', 'bridge').config
  model = config.model
  assert model.ici_mesh_shape == [2, 4]
  mesh = partitioning.create_mesh(model.ici_mesh_shape, model.mesh_axis_names)
  one = jax.make_mesh(
    (1, 1),
    mesh.axis_names,
    devices=jax.devices()[:1],
    axis_types=(AxisType.Auto,) * 2,
  )
  losses, shapes = _train(config, mesh, batches)
  for found in shapes:
    assert found['first/w'] == ((8, 8), (4, 2))
    assert found['second/w'] == ((8, 2), (2, 2))
    assert found['first/b'] == ((8,), (2,))
  want, shapes = _train(config, one, batches)
  assert shapes[0]['first/w'] == ((8, 8), (8, 8))
  np.testing.assert_allclose(losses, want, rtol=1e-5)


@pytest.mark.slow
def test_parity_is_measured_on_one_device():
  """With the axes of the mesh, by which weights are split."""
  params = _params(np.arange(8).reshape([2, 4]))
  translated = bridge_task.translate(params, 'tiny', 'bridge')
  variables = translated.config.model.lingvo_task.at_training.variables
  weights = {k: np.ones(v.shape, np.float32) for k, v in variables.items()}
  batch = tiny_task.batches()[0]
  run = our_side.run(
    translated, batch, [], weights, sample=None, step_samples=[]
  )
  assert np.isfinite(run.loss)
  assert run.gradients['first.w'].shape == (8, 8)


def test_several_meshes_are_refused():
  params = _params(np.arange(8).reshape([2, 4]))
  params.second.device_mesh = np.arange(8)
  with pytest.raises(errors.UserError, match=r'shapes \(2, 4\), \(8,\)'):
    bridge_task.translate(params, 'tiny', 'bridge')
