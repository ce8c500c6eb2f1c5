"""Shapes and shardings of a state, from metadata: `paxml.tasks_lib`."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from pax_compat import base_layer, errors, learners
from pax_compat.tasks.train_states import TrainState

__all__ = [
  'create_state',
  'create_state_padded_shapes',
  'create_state_partition_specs',
  'create_state_unpadded_shapes',
  'filter_nestedmap',
]


def create_state(
  mdl_vars: Mapping[str, Any],
  var_weight_hparams: Mapping[str, Any],
  discard_opt_states: bool,
  learners: Sequence[learners.Learner] | None,
) -> TrainState:
  """Returns the state before the first step.

  Args:
    mdl_vars: the variables by collection.
    var_weight_hparams: their metadata.
    discard_opt_states: whether the state has none of the learners.
    learners: one; None without its state.
  """
  states = []
  if not discard_opt_states:
    states = [_one(learners).get_grad_tx(var_weight_hparams).init(mdl_vars)]
  return TrainState(jnp.zeros([], jnp.uint32), dict(mdl_vars), states)


def create_state_unpadded_shapes(
  var_weight_hparams: Mapping[str, Any],
  discard_opt_states: bool,
  learners: Sequence[learners.Learner] | None,
) -> TrainState:
  """Returns the shapes of a state.

  Args:
    var_weight_hparams: metadata of the variables, such as
      `layer.abstract_init_with_metadata` returns.
    discard_opt_states: whether the state has none of the learners.
    learners: one; None without its state.
  """
  variables = jax.tree.map(_shape, var_weight_hparams)
  states = []
  if not discard_opt_states:
    states = [_state_of(_one(learners), var_weight_hparams, variables)]
  return TrainState(jax.ShapeDtypeStruct([], jnp.uint32), variables, states)


def create_state_padded_shapes(
  var_weight_hparams: Mapping[str, Any],
  mesh_shape: Sequence[int] | None,
  mesh_axis_names: Sequence[str] | None,
  discard_opt_states: bool,
  learners: Sequence[learners.Learner] | None,
) -> TrainState:
  """Returns `create_state_unpadded_shapes`: uneven shards need no padding."""
  del mesh_shape, mesh_axis_names
  return create_state_unpadded_shapes(
    var_weight_hparams, discard_opt_states, learners
  )


def create_state_partition_specs(
  var_weight_hparams: Mapping[str, Any],
  mesh_shape: Sequence[int],
  mesh_axis_names: Sequence[str],
  discard_opt_states: bool,
  learners: Sequence[learners.Learner] | None,
  opt_states: Any = None,
) -> TrainState:
  """Returns the `PartitionSpec`s of a state.

  Args:
    var_weight_hparams: metadata of the variables.
    mesh_shape: devices along each axis.
    mesh_axis_names: names of the axes.
    discard_opt_states: whether the state has none of the learners.
    learners: one; None without its state.
    opt_states: has no effect.
  """
  del opt_states
  specs = base_layer.var_partition_specs(
    var_weight_hparams, mesh_shape, mesh_axis_names
  )
  states = []
  if not discard_opt_states:
    mesh = AbstractMesh(tuple(mesh_shape), tuple(mesh_axis_names))
    sharded = jax.tree.map(
      lambda meta, spec: _shape(meta, NamedSharding(mesh, spec)),
      var_weight_hparams,
      specs,
    )
    state = _state_of(_one(learners), var_weight_hparams, sharded)
    states = [jax.tree.map(lambda x: x.sharding.spec, state)]
  return TrainState(PartitionSpec(), specs, states)


def filter_nestedmap(full_specs: Any, partial_specs: Any) -> Any:
  """Returns the entries of nested dicts and lists that another tree has.

  Args:
    full_specs: nested dicts and lists; whatever else is a leaf.
    partial_specs: the tree that selects from it.
  """
  if isinstance(full_specs, dict):
    chosen = {
      key: filter_nestedmap(full_specs[key], partial_specs[key])
      for key in partial_specs
    }
    return type(full_specs)(chosen)
  if isinstance(full_specs, list):
    pairs = zip(full_specs, partial_specs, strict=True)
    return [filter_nestedmap(*pair) for pair in pairs]
  return full_specs


def _shape(meta: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
  shape = (*(meta.repeat_prefix or ()), *meta.shape)
  return jax.ShapeDtypeStruct(
    shape, meta.dtype or jnp.float32, sharding=sharding
  )


def _one(found: Sequence[learners.Learner] | None) -> learners.Learner:
  if not found or len(found) != 1:
    raise errors.UserError(
      f'learners is {found!r}; expected one, or discard_opt_states=True'
    )
  return found[0]


def _state_of(learner, metas, variables) -> Any:
  """Returns the state of a learner, with shardings if the variables have."""
  params = variables[base_layer.PARAMS]
  return learner.abstract_state(
    params,
    weight_metas=learners.by_path(metas[base_layer.PARAMS]),
    variables=variables,
  )
