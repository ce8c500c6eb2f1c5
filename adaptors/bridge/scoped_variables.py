"""Lingvo's variables as Flax variables of a layer, nested as in theta.

Shapes: V rows of a table.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from adaptors.bridge import meshes
from adaptors.bridge.functional import initial_values
from adaptors.bridge.functional.variables import Variable
from pax_compat import base_layer
from pax_compat.base_layer import (
  BEFORE_STEP,
  NON_TRAINABLE,
  PARAMS,
  ROW_PROBES,
  WeightHParams,
  WeightInit,
)
from pax_compat.layer_core.row_gradients import RowStatistics, no_statistics
from pax_compat.layer_core.weight_hparams import SKIP_LP_REGULARIZATION

# Path of the number of steps.
GLOBAL_STEP = 'global_step'
# Lingvo's names of groups of variables that have a meaning here.
_GROUPS = {'__lingvo_skip_lp_regularization': SKIP_LP_REGULARIZATION}


class ScopedVariables:
  """Creates, reads and writes the variables of a layer by theta path.

  They are in the collection `params`, or in `non_trainable` if Lingvo's
  learners do not train them.
  """

  def __init__(self, layer: base_layer.BaseLayer):
    """Wraps a layer within its setup or call."""
    self._layer = layer

  def create_all(
    self,
    variables: Mapping[str, Variable],
    *,
    probes: Iterable[str],
    axes: Sequence[str] | None = None,
  ):
    """Creates variables, and the number of steps, during initialization.

    Args:
      variables: of Lingvo, by theta path.
      probes: paths of tables [V, ...] that get a probe, where that collection
        is made; scalars among them do not.
      axes: see `weight_hparams`.
    """
    for path, variable in variables.items():
      weight = weight_hparams(variable, axes)
      self._create(path, weight, is_trainable=variable.trainable)
    count = WeightHParams([], WeightInit.Constant(0), jnp.int32)
    self._create(GLOBAL_STEP, count, is_trainable=False)
    for path in probes:
      shape = variables[path].shape
      scope, name = self._location(path)
      if shape.rank and scope.is_mutable_collection(ROW_PROBES):
        scope.variable(ROW_PROBES, name, no_statistics, shape[0])

  def _create(self, theta: str, weight: WeightHParams, *, is_trainable: bool):
    scope, name = self._location(theta)

    def boxed(key):
      value = weight.init(key, weight.shape, weight.dtype)
      return base_layer.BoxedParam(value, weight)

    if is_trainable:
      scope.param(name, boxed)
    else:
      key = self._layer.make_rng
      scope.variable(NON_TRAINABLE, name, lambda: boxed(key(PARAMS)))

  def read(self, theta: str) -> jax.Array:
    """Returns a variable's value."""
    return self._read(theta, '')

  def read_before(self, theta: str) -> jax.Array:
    """Returns its value before the step; see `BaseModel.after_update`."""
    return self._read(theta, BEFORE_STEP)

  def _read(self, theta: str, suffix: str) -> jax.Array:
    scope, name = self._location(theta)
    trained = scope.has_variable(PARAMS, name)
    collection = PARAMS if trained else NON_TRAINABLE
    value = scope.get_variable(f'{collection}{suffix}', name)
    return jnp.asarray(base_layer.unbox(value))

  def write(self, theta: str, value: jax.Array):
    """Updates a non-trainable variable."""
    scope, name = self._location(theta)
    box = scope.get_variable(NON_TRAINABLE, name)
    new = box.replace(value=value) if base_layer.is_boxed(box) else value
    scope.put_variable(NON_TRAINABLE, name, new)

  def write_after_step(self, updates: Mapping[str, jax.Array]):
    """Updates variables and counts the step, if the layer is trained.

    Args:
      updates: new values by theta path.
    """
    layer = self._layer
    if layer.do_eval or not layer.is_mutable_collection(NON_TRAINABLE):
      return
    steps = self.read(GLOBAL_STEP)
    for path, value in updates.items():
      self.write(path, value)
    self.write(GLOBAL_STEP, steps + 1)

  def probes(self, paths: Iterable[str]) -> dict[str, RowStatistics]:
    """Returns the probes of the tables at these theta paths, if there are."""
    found = {}
    for path in paths:
      scope, name = self._location(path)
      if scope.has_variable(ROW_PROBES, name):
        found[path] = scope.get_variable(ROW_PROBES, name)
    return found

  def _location(self, theta: str) -> tuple[Any, str]:
    """Returns a variable's scope, and its name in it."""
    *parents, name = jax_path(theta).split('/')
    scope = self._layer.scope
    for parent in parents:
      scope = scope.push(parent, reuse=True)
    return scope, name


def jax_path(theta: str) -> str:
  """Returns the path of a variable in JAX by its theta path.

  >>> jax_path('lm.rnns.rnn[0].cell.wm')
  'lm/rnns/rnn_0/cell/wm'
  """
  return theta.replace('.', '/').replace('[', '_').replace(']', '')


def weight_hparams(
  variable: Variable, axes: Sequence[str] | None = None
) -> WeightHParams:
  """Returns the equivalent of a Lingvo variable.

  Args:
    variable: the variable.
    axes: names of the axes of its mesh; None replicates it.
  """
  groups = variable.var_params.collections or ()
  return WeightHParams(
    tuple(variable.shape.as_list()),
    initial_values.of(variable),
    jax.dtypes.canonicalize_dtype(variable.dtype.as_numpy_dtype),
    collections=tuple(_GROUPS.get(name, name) for name in groups),
    tensor_split_dims_mapping=meshes.split(variable, axes),
  )
