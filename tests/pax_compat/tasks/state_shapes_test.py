"""Tests of a state's shapes and shardings from metadata."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from pax_compat import base_layer, errors, learners, optimizers
from pax_compat.nested_map import NestedMap
from pax_compat.tasks import state_shapes
from tests.pax_compat.trainer import lines

_METAS = {
  'params': {
    'w': base_layer.WeightHParams(
      [4, 6], tensor_split_dims_mapping=['x', None]
    ),
    'b': base_layer.WeightHParams([6], repeat_prefix=[2]),
  }
}


def _learner():
  # As a script makes it: with an optimizer that is built.
  return learners.Learner(
    loss_name='loss', optimizer=optimizers.Adam(learning_rate=0.1)
  )


def test_shapes():
  for shapes in (
    state_shapes.create_state_unpadded_shapes(_METAS, False, [_learner()]),
    state_shapes.create_state_padded_shapes(
      _METAS, [2], ['x'], False, [_learner()]
    ),
  ):
    assert shapes.mdl_vars['params']['b'].shape == (2, 6)
    assert shapes.step.shape == ()
    of_learner = {x.shape for x in jax.tree.leaves(shapes.opt_states)}
    assert of_learner == {(), (4, 6), (2, 6)}


def test_specs():
  specs = state_shapes.create_state_partition_specs(
    _METAS, [2], ['x'], discard_opt_states=False, learners=[_learner()]
  )
  assert specs.mdl_vars['params']['w'] == PartitionSpec('x', None)
  leaves = jax.tree.leaves(
    specs.opt_states, is_leaf=lambda x: isinstance(x, PartitionSpec)
  )
  assert PartitionSpec('x', None) in leaves
  without = state_shapes.create_state_partition_specs(
    _METAS, [2], ['x'], discard_opt_states=True, learners=None
  )
  assert not without.opt_states


def test_a_state_with_that_of_a_learner_needs_one():
  with pytest.raises(errors.UserError, match='discard_opt_states=True'):
    state_shapes.create_state_unpadded_shapes(_METAS, False, None)


def test_a_tree_selects_from_another():
  spec = PartitionSpec(None)
  full = {'a': 1, 'b': NestedMap(c=2, d=[3, NestedMap(e=spec, f=7)])}
  found = state_shapes.filter_nestedmap(full, {'b': {'d': [0, {'e': 0}]}})
  assert found == {'b': NestedMap(d=[3, NestedMap(e=spec)])}
  assert isinstance(found['b'], NestedMap)


def test_a_task_knows_the_shapes_of_its_state():
  task = lines.task().Instantiate()
  metas = {'params': {'w': base_layer.WeightHParams([3])}}
  variables = {'params': {'w': jnp.ones([3])}}
  state = task.create_train_state(variables, metas)
  for made, shapes in (
    (state, task.create_train_state_unpadded_shapes(metas)),
    (state.to_eval_state(), task.create_train_state_padded_shapes(metas, True)),
  ):
    found = jax.tree.map(lambda x: (x.shape, x.dtype), made)
    assert found == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)
  assert task.create_train_state(variables, metas, True).opt_states == []
  assert len(task.create_opt_states(variables, metas)) == 1
  assert task.create_train_state_partition_specs(metas) is None


def test_a_task_knows_the_sharding_of_its_state():
  config = lines.task()
  config.model.set(ici_mesh_shape=[2, 1], mesh_axis_names=['data', 'mdl'])
  weight = base_layer.WeightHParams([4], tensor_split_dims_mapping=['data'])
  specs = config.Instantiate().create_train_state_partition_specs(
    {'params': {'w': weight}}, discard_opt_states=True
  )
  assert specs.mdl_vars['params']['w'] == PartitionSpec('data')
