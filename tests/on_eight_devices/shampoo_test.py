"""DistributedShampoo on a mesh makes the steps of a single device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pax_compat import base_layer, learners, optimizers

_SHARDED = {
  'mesh_axis_names': ('data', 'mdl'),
  'tensor_split_dims_mapping': [-1, 'data', 1],
  'tensor_split_dims_mapping_for_inverse_pth_root': ['data', -1, 1],
}
_SPECS = {
  'w': PartitionSpec('data', 'mdl'),
  'stack': PartitionSpec(None, 'data', 'mdl'),
}
_METAS = {
  'w': base_layer.WeightHParams([24, 16]),
  'stack': base_layer.WeightHParams([3, 8, 8], repeat_prefix=[3]),
}


def _arrays(seed):
  random = np.random.default_rng(seed)
  return {k: random.normal(size=m.shape).astype('f') for k, m in _METAS.items()}


@pytest.mark.parametrize(
  'cls,fields',
  [('DistributedShampoo', {}), ('ShardedDistributedShampoo', _SHARDED)],
)
def test_matrices_are_divided_among_devices(cls, fields):
  """Devices divide neither the matrices of `w`, 12, nor those of a layer."""
  learner = learners.Learner.config(
    optimizer=getattr(optimizers, cls).config(
      learning_rate=0.1,
      block_size=8,
      best_effort_shape_interpretation=False,
      preconditioning_compute_steps=1,
      start_preconditioning_step=0,
      matrix_epsilon=1e-2,
      **fields,
    )
  ).Instantiate()

  def init(weights):
    return learner.init(weights, weight_metas=_METAS)

  def step(weights, state, gradients):
    return learner.update(weights, state, gradients, weight_metas=_METAS)[:2]

  def last(weights, state, step):
    for seed in (1, 2):
      weights, state = step(weights, state, _arrays(seed))
    return weights

  one = jax.tree.map(jnp.asarray, _arrays(0))
  want = last(one, init(one), jax.jit(step))
  mesh = jax.make_mesh((2, 4), ('data', 'mdl'), axis_types=(AxisType.Auto,) * 2)
  splits = {k: NamedSharding(mesh, spec) for k, spec in _SPECS.items()}
  with jax.set_mesh(mesh):
    weights = jax.device_put(one, splits)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      weights,
    )
    state = learner.abstract_state(shapes, weight_metas=_METAS)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    made = last(
      weights,
      jax.jit(init, out_shardings=shardings)(weights),
      jax.jit(step, out_shardings=(splits, shardings)),
    )
  for key, weight in want.items():
    np.testing.assert_allclose(made[key], weight, rtol=1e-5, atol=1e-5)
