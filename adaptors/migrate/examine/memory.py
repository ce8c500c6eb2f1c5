"""Estimates the memory of training from shapes.

Nothing is allocated, and the mesh of the experiment needs no devices.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from adaptors.bridge import scoped_variables
from adaptors.lingvo_parity import batches, synthetic
from adaptors.migrate.examine.routes import Route
from adaptors.migrate.findings import Memory, Status
from pax_compat import base_layer, learners
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.config import Config
from pax_compat.trainer import partitioning

# Shape of the batch for initialization; weights do not depend on it.
_ROWS, _LENGTH = 2, 16


def variables_of(route: Route) -> dict[str, Any]:
  """Returns the variables of a model by collection, boxed shapes by path.

  Args:
    route: of the task.

  Raises:
    UserError: the fields of the model's batches are not known.
  """
  if route.status is Status.BRIDGED:
    return _of_lingvo(route.built.variables)
  batch = batches.nested(synthetic.batch(route.params, _ROWS, _LENGTH))
  model = route.translated.config.model.Instantiate()
  variables = jax.eval_shape(
    lambda key, batch: model.init_boxed({PARAMS: key}, batch),
    jax.random.key(0),
    batch,
  )
  return {
    name: learners.by_path(variables.get(name, {}), base_layer.is_boxed)
    for name in (PARAMS, NON_TRAINABLE)
  }


def _of_lingvo(variables: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the variables of a bridged task, as `variables_of`."""
  found = {PARAMS: {}, NON_TRAINABLE: {}}
  for theta, variable in variables.items():
    meta = scoped_variables.weight_hparams(variable)
    shape = jax.ShapeDtypeStruct(tuple(meta.shape), meta.dtype)
    kind = PARAMS if variable.trainable else NON_TRAINABLE
    found[kind][scoped_variables.jax_path(theta)] = base_layer.BoxedParam(
      value=shape, meta=meta
    )
  return found


def sizes(variables: Mapping[str, Any]) -> dict[str, int]:
  """Returns the number of elements of each variable, by path."""
  return {
    path: math.prod(base_layer.unbox(box).shape)
    for collection in variables.values()
    for path, box in collection.items()
  }


def estimate(config: Config, variables: Mapping[str, Any]) -> Memory:
  """Returns the memory of a training run.

  Args:
    config: of the task.
    variables: of its model, as returned by `variables_of`.

  Raises:
    UserError: a weight cannot be sharded as its metadata require.
  """
  mesh = _mesh(config.model)
  learner = config.train.learner.Instantiate()
  metas = {path: box.meta for path, box in variables[PARAMS].items()}
  weights = _sharded(mesh, variables[PARAMS])
  others = _sharded(mesh, variables[NON_TRAINABLE])
  state = learner.abstract_state(
    weights, weight_metas=metas, variables={NON_TRAINABLE: others}
  )
  trees = (weights, others, state, weights)  # Gradients are like weights.
  totals = [sum(map(_bytes, jax.tree.leaves(tree))) for tree in trees]
  per_device = sum(map(_bytes_per_device, jax.tree.leaves(trees)))
  return Memory(*totals, per_device, dict(mesh.shape))


def _mesh(model: Config) -> AbstractMesh:
  """Returns a model's mesh; a single device by default."""
  shape, names = model.ici_mesh_shape, model.mesh_axis_names
  if shape is None:
    shape, names = (1,), ('data',)
  slices = model.dcn_mesh_shape or [1] * len(shape)
  sizes_of_axes = tuple(i * s for i, s in zip(shape, slices, strict=True))
  return AbstractMesh(
    sizes_of_axes, tuple(names), (AxisType.Auto,) * len(sizes_of_axes)
  )


def _sharded(mesh: AbstractMesh, boxes: Mapping[str, Any]) -> dict[str, Any]:
  """Returns shapes by path, with their shardings over the mesh."""
  return {
    path: jax.ShapeDtypeStruct(
      box.value.shape,
      box.value.dtype,
      sharding=partitioning.weight_sharding(mesh, box.meta),
    )
    for path, box in boxes.items()
  }


def _bytes(leaf: Any) -> int:
  return math.prod(leaf.shape) * _itemsize(leaf)


def _bytes_per_device(leaf: Any) -> int:
  sharding = getattr(leaf, 'sharding', None)
  shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
  return math.prod(shape) * _itemsize(leaf)


def _itemsize(leaf: Any) -> int:
  return np.dtype(leaf.dtype).itemsize
