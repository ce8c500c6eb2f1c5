"""Pax's DistributedShampoo; `tests/pax/optimizers_test.py` has its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from pax_compat import base_layer, errors, learners, optimizers
from pax_compat.optimizers import matrix_roots, weight_blocks


def _matrix(size, rank):
  columns = np.random.default_rng(0).normal(size=(size, rank))
  return jnp.asarray(columns @ columns.T, jnp.float32)


@pytest.mark.parametrize('order', [1, 2, 4, 6])
def test_roots_by_iteration_and_by_eigenvalues_agree(order):
  matrix = _matrix(5, 4)
  ridge = 1e-2 * np.linalg.eigvalsh(matrix)[-1]
  for compute in (
    matrix_roots.newton_inverse_root,
    matrix_roots.eigh_inverse_root,
  ):
    made = compute(
      jnp.pad(matrix, (0, 2)), order, 1e-2, size=5, is_relative=True
    )
    assert made.error < 1e-4
    assert not np.any(made.root[5:]) and not np.any(made.root[:, 5:])
    root = np.float64(made.root[:5, :5])
    np.testing.assert_allclose(
      np.linalg.matrix_power(root, order) @ (matrix + ridge * np.eye(5)),
      np.eye(5),
      atol=2e-2 / order,
    )


@pytest.mark.parametrize(
  'shape,max_size,want',
  [
    ([1, 2, 768, 1, 2048], 1024, (2, 768, 2048)),
    ([3, 4, 5], 4096, (60,)),
    ([1, 1], 10, (1,)),
    ([], 10, ()),
  ],
)
def test_small_dimensions_are_merged(shape, max_size, want):
  assert weight_blocks.merged_shape(shape, max_size) == want


def test_blocks_are_joined_again():
  weight = jnp.arange(5 * 7.0).reshape(5, 7)
  blocks = weight_blocks.WeightBlocks([5, 7], 4, 0)
  parts = blocks.split(weight)
  assert parts.shape == (4, 4, 4)
  assert list(blocks.sizes(0)) == [4, 4, 1, 1]
  assert list(blocks.sizes(1)) == [4, 3, 4, 3]
  np.testing.assert_array_equal(parts[1, :, :3], weight[:4, 4:])
  np.testing.assert_array_equal(blocks.join(parts), weight)


def _steps(config, weights, gradients):
  learner = learners.Learner.config(optimizer=config).Instantiate()
  metas = {k: base_layer.WeightHParams(w.shape) for k, w in weights.items()}
  state = learner.init(weights, weight_metas=metas)
  for gradient in gradients:
    weights, state, metrics, _ = learner.update(
      weights, state, gradient, weight_metas=metas
    )
  return weights, state, metrics


def test_a_root_that_fails_is_not_used():
  """And its error is reported."""
  config = optimizers.DistributedShampoo.config(
    learning_rate=0.1,
    preconditioning_compute_steps=1,
    start_preconditioning_step=0,
    graft_type=optimizers.GraftingType.SGD,
    matrix_epsilon=0.1,
    nesterov=False,
    beta1=0.0,
  )
  weights = {'w': jnp.ones([4])}
  # No error is below 0, so all roots stay the identity.
  config.inverse_failure_threshold = 0.0
  gradients = [{'w': jnp.arange(4.0)}, {'w': jnp.array([3.0, 0, 1, 0])}]
  moved, _, metrics = _steps(config, weights, gradients)
  np.testing.assert_allclose(moved['w'], [0.7, 0.9, 0.7, 0.7], rtol=1e-6)
  assert metrics['learning/root_errors/w_0'] < 1e-5
  config.set(inverse_failure_threshold=0.1, summarize_training_metrics=False)
  used, _, metrics = _steps(config, weights, gradients)
  assert not np.allclose(used['w'], moved['w'], rtol=1e-3)
  assert not [name for name in metrics if 'root_errors' in name]


def test_matrices_are_sharded():
  mesh = AbstractMesh((2, 4), ('data', 'mdl'), axis_types=(AxisType.Auto,) * 2)
  weight = jax.ShapeDtypeStruct(
    [6, 8],
    jnp.float32,
    sharding=NamedSharding(mesh, PartitionSpec('data', 'mdl')),
  )
  config = optimizers.ShardedDistributedShampoo.config(
    learning_rate=0.1,
    mesh_axis_names=('data', 'mdl'),
    tensor_split_dims_mapping=[-1, 1, -1],
    best_effort_shape_interpretation=False,
  )

  def specs(config):
    learner = learners.Learner.config(optimizer=config).Instantiate()
    state = learner.abstract_state(
      {'w': weight}, weight_metas={'w': base_layer.WeightHParams([6, 8])}
    ).optimizer[0]
    return [x.sharding.spec for x in (*state.roots['w'], state.momentum['w'])]

  none = PartitionSpec(None, None, None)  # 4 devices do not divide 6 rows.
  split = PartitionSpec(None, 'mdl', None)
  assert specs(config) == [none, split, PartitionSpec('data', 'mdl')]
  config.tensor_split_dims_mapping = [None, 'model', None]
  with pytest.raises(errors.UserError, match="'model' of tensor_split_dims"):
    specs(config)


def test_ready_made_configs():
  cls = optimizers.ShardedDistributedShampoo
  for name in ('ImageClassification', 'LanguageModeling'):
    getattr(optimizers.DistributedShampoo, f'HParams{name}')()
    getattr(cls, f'HParams{name}')()
  large = cls.HParamsLargeLanguageModeling()
  assert large.set(learning_rate=1.0).Instantiate().block_size == 4096


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'compression_rank': 2}, 'compression_rank is 2, expected 0: optax-sham'),
    ({'lobpcg_topk_precondition': 1}, 'lobpcg_topk_precondition is 1'),
    ({'best_effort_memory_usage_reduction': True}, 'momentum are float32'),
    ({'graft_type': 7}, 'graft_type is 7; expected a GraftingType'),
    ({'preconditioning_compute_steps': 0}, 'steps is 0; expected 1 or more'),
    ({'block_size': -1}, 'block_size is -1; expected 0 or more'),
    ({'mesh_axis_names': None}, 'has axis 1, and mesh_axis_names is None'),
  ],
)
def test_mistakes(fields, message):
  fields = {'mesh_axis_names': ('data', 'mdl'), **fields}
  with pytest.raises(errors.UserError, match=message):
    optimizers.ShardedDistributedShampoo.config(**fields).Instantiate()
