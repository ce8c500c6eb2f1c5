"""The state of training: shapes and shardings, and initial values."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from pax_compat import base_layer, learners
from pax_compat.trainer import partitioning


class TrainState(flax.struct.PyTreeNode):
  """Everything that changes while a task is trained.

  Attributes:
    step: [], int32, number of steps made.
    mdl_vars: the model's variables by collection, unboxed.
    opt_state: the learner's state.
  """

  step: jax.Array
  mdl_vars: Any
  opt_state: Any


def abstract_state(learner, mesh: Mesh, boxed) -> TrainState:
  """Returns the state's shapes, with the shardings of the weights."""
  whole = partitioning.replicated(mesh)

  def sharded(x):
    if base_layer.is_boxed(x):
      sharding = partitioning.weight_sharding(mesh, x.meta)
      x = x.value
    else:
      sharding = whole
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  mdl_vars = jax.tree.map(sharded, boxed, is_leaf=base_layer.is_boxed)
  params = mdl_vars[base_layer.PARAMS]
  return TrainState(
    step=jax.ShapeDtypeStruct([], jnp.int32, sharding=whole),
    mdl_vars=mdl_vars,
    opt_state=learner.abstract_state(
      params, weight_metas=metas(boxed), variables=mdl_vars
    ),
  )


def metas(boxed) -> dict[str, base_layer.WeightHParams]:
  """Returns the metadata of each trainable weight, by path."""
  boxes = learners.by_path(
    boxed[base_layer.PARAMS], is_leaf=base_layer.is_boxed
  )
  return {path: box.meta for path, box in boxes.items()}


def kept_collections(variables) -> dict:
  """Returns the collections that are kept between steps."""
  kept = (base_layer.PARAMS, base_layer.NON_TRAINABLE)
  return {name: variables[name] for name in kept if name in variables}


def initial_state(boxed, learner) -> TrainState:
  """Returns the state of a learner for initial variables, `BoxedParam`s."""
  boxed = kept_collections(boxed)
  mdl_vars = base_layer.unbox(boxed)
  return TrainState(
    step=jnp.zeros([], jnp.int32),
    mdl_vars=mdl_vars,
    opt_state=learner.init(
      mdl_vars[base_layer.PARAMS],
      weight_metas=metas(boxed),
      variables=mdl_vars,
    ),
  )
