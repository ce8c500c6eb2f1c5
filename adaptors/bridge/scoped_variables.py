"""Lingvo's variables as those of a layer of ours, nested as in theta.

Shapes: V rows of a table.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from adaptors.bridge.functional import initial_values
from adaptors.bridge.functional.variables import Variable
from pax_compat import base_layer
from pax_compat.base_layer import (
  NON_TRAINABLE,
  PARAMS,
  ROW_PROBES,
  WeightHParams,
)
from pax_compat.layer_core.row_gradients import RowFacts, no_facts


class ScopedVariables:
  """The variables of a layer, by theta path.

  They are in the collection `params`, or in `non_trainable` where Lingvo's
  learners do not train them.
  """

  def __init__(self, layer: base_layer.BaseLayer):
    """Holds on to nothing but the layer, while it is set up or called."""
    self._layer = layer

  def create(self, theta: str, weight: WeightHParams, *, is_trainable: bool):
    """Creates a variable, while the model is initialised."""
    scope, name = self._place(theta)

    def boxed(key):
      value = weight.init(key, weight.shape, weight.dtype)
      return base_layer.BoxedParam(value, weight)

    if is_trainable:
      scope.param(name, boxed)
    else:
      key = self._layer.make_rng
      scope.variable(NON_TRAINABLE, name, lambda: boxed(key(PARAMS)))

  def create_probe(self, theta: str, rows: int):
    """Creates the probe of a table [V, ...]; see `row_gradients`."""
    scope, name = self._place(theta)
    scope.variable(ROW_PROBES, name, no_facts, rows)

  def read(self, theta: str) -> jax.Array:
    """Returns a variable's value."""
    scope, name = self._place(theta)
    trained = scope.has_variable(PARAMS, name)
    value = scope.get_variable(PARAMS if trained else NON_TRAINABLE, name)
    return jnp.asarray(base_layer.unbox(value))

  def write(self, theta: str, value: jax.Array):
    """Gives a variable that is not trained its next value."""
    scope, name = self._place(theta)
    box = scope.get_variable(NON_TRAINABLE, name)
    new = box.replace(value=value) if base_layer.is_boxed(box) else value
    scope.put_variable(NON_TRAINABLE, name, new)

  def probes(self, paths: Iterable[str]) -> dict[str, RowFacts]:
    """Returns the probes among these theta paths, if any are given."""
    found = {}
    for path in paths:
      scope, name = self._place(path)
      if scope.has_variable(ROW_PROBES, name):
        found[path] = scope.get_variable(ROW_PROBES, name)
    return found

  def _place(self, theta: str) -> tuple[Any, str]:
    """Returns the scope that a variable is in, and its name there."""
    *parents, name = jax_path(theta).split('/')
    scope = self._layer.scope
    for parent in parents:
      scope = scope.push(parent, reuse=True)
    return scope, name


def jax_path(theta: str) -> str:
  """Returns the path of a variable here, by its theta path.

  Args:
    theta: such as `lm.rnns.rnn[0].cell.wm`, here `lm/rnns/rnn_0/cell/wm`.
  """
  return theta.replace('.', '/').replace('[', '_').replace(']', '')


def weight_of(variable: Variable) -> WeightHParams:
  """Returns what a variable of Lingvo's is here."""
  return WeightHParams(
    tuple(variable.shape.as_list()),
    initial_values.of(variable),
    jax.dtypes.canonicalize_dtype(variable.dtype.as_numpy_dtype),
    collections=tuple(variable.var_params.collections or ()),
  )
