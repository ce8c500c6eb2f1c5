"""A small GShard model on a mesh of eight devices."""

import jax
import numpy as np
from jax.sharding import AxisType

from adaptors.translate.tasks import single as task_translation
from pax_compat import learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import small_experiments
from tests.adaptors.translate import task_parity
from tests.adaptors.translate.gshard import gshard_mesh_test


def _train(config, mesh, batch):
  """Trains for three steps.

  Returns:
    The shapes of each weight and of its shards, by path, and the losses.
  """
  made = program.create(config.Instantiate(), mesh, batch)
  state = made.init_state(batch)
  places = {
    path: (x.shape, x.addressable_shards[0].data.shape)
    for path, x in learners.by_path(state.mdl_vars['params']).items()
  }
  losses = []
  for _ in range(3):
    put = partitioning.global_batch(batch, partitioning.batch_sharding(mesh))
    state, outputs = made.train_step(state, put)
    losses.append(float(outputs['loss']))
  return places, losses


def test_a_model_is_split_and_trains_as_on_one_device():
  params = gshard_mesh_test.small([2, 4])
  batch = task_parity.nested(small_experiments.batch(params))
  config = task_translation.translate_task(params, 'small').config
  model = config.model
  assert model.ici_mesh_shape == [2, 4]
  mesh = partitioning.create_mesh(model.ici_mesh_shape, model.mesh_axis_names)
  one = jax.make_mesh(
    (1, 1),
    mesh.axis_names,
    devices=jax.devices()[:1],
    axis_types=(AxisType.Auto,) * 2,
  )
  places, losses = _train(config, mesh, batch)
  _, want = _train(config, one, batch)
  np.testing.assert_allclose(losses, want, rtol=1e-5)
  _assert_split(places)


def _assert_split(places):
  data, mdl = gshard_mesh_test.D, gshard_mesh_test.M
  parts = {data: 2, mdl: 4, None: 1}
  ends = {**gshard_mesh_test.WEIGHTS, 'softmax/embedding/w': (None, mdl)}
  split = 0
  for path, (shape, part) in places.items():
    axes = [s for end, s in ends.items() if path.endswith(end)]
    axes = axes[0] if axes else [None] * len(shape)
    split += any(axes)
    want = tuple(n // parts[a] for n, a in zip(shape, axes, strict=True))
    assert part == want, path
  assert split == 2 * 7 + 1
