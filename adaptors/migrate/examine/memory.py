"""What a training run holds, worked out from shapes alone.

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
from adaptors.migrate.examine.routes import Way
from adaptors.migrate.findings import Memory, Status
from pax_compat import base_layer, learners
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.config import Config
from pax_compat.trainer import partitioning

# A batch by which a model is told its weights, which do not depend on it.
_ROWS, _LENGTH = 2, 16


def variables_of(way: Way) -> dict[str, Any]:
  """Returns the variables of a model by collection, boxed shapes by path.

  Args:
    way: of the task.

  Raises:
    UserError: it is not known what batches the model takes.
  """
  if way.status is Status.BRIDGED:
    return _of_stand_ins(way.built.variables)
  batch = batches.nested(synthetic.batch(way.params, _ROWS, _LENGTH))
  model = way.translated.config.model.Instantiate()
  variables = jax.eval_shape(
    lambda key, batch: model.init({PARAMS: key}, batch),
    jax.random.key(0),
    batch,
  )
  return {
    name: learners.by_path(variables.get(name, {}), base_layer.is_boxed)
    for name in (PARAMS, NON_TRAINABLE)
  }


def _of_stand_ins(variables: Mapping[str, Any]) -> dict[str, Any]:
  """As `variables_of`, of the variables of a bridged task by theta path."""
  found = {PARAMS: {}, NON_TRAINABLE: {}}
  for theta, variable in variables.items():
    meta = scoped_variables.weight_of(variable)
    shape = jax.ShapeDtypeStruct(tuple(meta.shape), meta.dtype)
    kind = PARAMS if variable.trainable else NON_TRAINABLE
    found[kind][scoped_variables.jax_path(theta)] = base_layer.BoxedParam(
      value=shape, meta=meta
    )
  return found


def sizes(variables: Mapping[str, Any]) -> dict[str, int]:
  """Returns how many numbers each variable has, by path."""
  return {
    path: math.prod(base_layer.unbox(box).shape)
    for collection in variables.values()
    for path, box in collection.items()
  }


def estimate(config: Config, variables: Mapping[str, Any]) -> Memory:
  """Returns what a training run holds.

  Args:
    config: of the task.
    variables: of its model, as of `variables_of`.

  Raises:
    UserError: a weight cannot be split over the mesh as it is said to be.
  """
  mesh = _mesh(config.model)
  learner = config.train.learner.Instantiate()
  metas = {path: box.meta for path, box in variables[PARAMS].items()}
  weights = _placed(mesh, variables[PARAMS])
  others = _placed(mesh, variables[NON_TRAINABLE])
  state = learner.abstract_state(weights, weight_metas=metas)
  parts = (weights, others, state, weights)  # Gradients are as the weights are.
  totals = [sum(map(_bytes, jax.tree.leaves(part))) for part in parts]
  here = sum(
    _bytes_here(leaf) for part in parts for leaf in jax.tree.leaves(part)
  )
  return Memory(*totals, here, dict(mesh.shape))


def _mesh(model: Config) -> AbstractMesh:
  """Returns the mesh that a model asks for; a single device by default."""
  shape, names = model.ici_mesh_shape, model.mesh_axis_names
  if shape is None:
    shape, names = (1,), ('data',)
  slices = model.dcn_mesh_shape or [1] * len(shape)
  sizes_of_axes = tuple(i * s for i, s in zip(shape, slices, strict=True))
  return AbstractMesh(
    sizes_of_axes, tuple(names), (AxisType.Auto,) * len(sizes_of_axes)
  )


def _placed(mesh: AbstractMesh, boxes: Mapping[str, Any]) -> dict[str, Any]:
  """Returns shapes by path, with how they are split over the mesh."""
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


def _bytes_here(leaf: Any) -> int:
  """Returns how much of an array a device has."""
  sharding = getattr(leaf, 'sharding', None)
  shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
  return math.prod(shape) * _itemsize(leaf)


def _itemsize(leaf: Any) -> int:
  return np.dtype(leaf.dtype).itemsize
