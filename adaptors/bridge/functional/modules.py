"""Variables of modules of TensorFlow Hub that a Lingvo layer wraps.

`tf_hub_layers` of Lingvo's milan loads a module, whose functions read and
assign real TensorFlow variables. A stand-in has such a variable: it is set to
the value of a call first, and set back at its end, so that the call is a pure
function all the same.
"""

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from adaptors import lingvo_runtime
from adaptors.bridge.functional.variables import Variable

_HUB_LAYERS = 'lingvo.tasks.milan.tf_hub_layers'


class ModuleVariable(Variable):
  """A stand-in for a variable of a module.

  Attributes:
    actual: the `tf.Variable`, with its initial value.
  """

  def __init__(self, name: str, actual: Any):
    """Takes its metadata from the variable, but for the name."""
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    init = py_utils.WeightInit.CustomConstantVarInit(actual.numpy())
    super().__init__(
      name=name,
      shape=actual.shape,
      dtype=actual.dtype,
      trainable=actual.trainable,
      var_params=py_utils.WeightParams(
        actual.shape.as_list(), init, actual.dtype
      ),
      num_stacked_dims=0,
    )
    self.actual = actual


@contextlib.contextmanager
def wrapping() -> Iterator[None]:
  """Makes Lingvo's layers for modules create stand-ins.

  Lingvo's own function expects a graph: it looks for the variables in a set of
  those of the graph, and eager ones cannot be in sets.
  """
  hub_layers = sys.modules.get(_HUB_LAYERS)
  if hub_layers is None:  # Then these layers do not exist.
    yield
    return
  theirs = hub_layers._WrapNonLingvoVars

  def wrap(layer, variables: Collection[Any], trainable_variables=()):
    del trainable_variables
    for actual in variables:
      name = _name_in_graphs(layer.path.partition('.')[0], actual.name)
      variable = ModuleVariable(name, actual)
      key = name.partition(':')[0]
      layer._private_vars[key] = layer._private_theta[key] = variable

  hub_layers._WrapNonLingvoVars = wrap
  try:
    yield
  finally:
    hub_layers._WrapNonLingvoVars = theirs


def _name_in_graphs(task: str, name: str) -> str:
  """Returns the name of a variable in Lingvo's graph of a model of one task.

  The model has the task's name. Both have a name scope, and TensorFlow numbers
  the second one, that of the task.

  Args:
    task: the name of the task.
    name: of the variable, without a model.
  """
  first, slash, rest = name.partition('/')
  return f'{task}_1/{rest}' if slash and first == task else name


def of(variables: Mapping[str, Variable]) -> dict[str, ModuleVariable]:
  """Returns those of the variables that are of modules, by theta path."""
  return {
    path: variable
    for path, variable in variables.items()
    if isinstance(variable, ModuleVariable)
  }


@contextlib.contextmanager
def holding(
  variables: Mapping[str, ModuleVariable], values: Mapping[str, Any]
) -> Iterator[None]:
  """Sets the variables of modules to values within a graph.

  Args:
    variables: by theta path.
    values: tensors by theta path, of other variables as well.
  """
  tf = lingvo_runtime.module('tensorflow')
  before = {k: tf.identity(v.actual) for k, v in variables.items()}
  for path, variable in variables.items():
    variable.actual.assign(values[path])
  yield
  for path, variable in variables.items():
    variable.actual.assign(before[path])


def with_losses(params: Any) -> Any:
  """Returns Params of a layer that also returns its regularization loss.

  It returns a tuple of its output and the sum of its `losses`, if it has some;
  Lingvo's milan adds them to the loss of the task.

  Args:
    params: of a layer that wraps a module.
  """
  tf = lingvo_runtime.module('tensorflow')
  base = params.cls

  def fprop(self, theta, *args):
    outputs = base.FProp(self, theta, *args)
    losses = list(self.losses)
    return (outputs, tf.add_n(losses)) if losses else outputs

  params = params.Copy()
  params.cls = type(base)(
    base.__name__,
    (base,),
    dict(
      FProp=fprop,
      __module__=base.__module__,
      __qualname__=base.__qualname__,
    ),
  )
  return params
