"""Stand-ins for the variables of a Lingvo task that is called as a function.

A Lingvo task creates its variables while it is built, reads some from theta and
some directly, and assigns to some. A stand-in has the metadata of a variable
and allocates nothing. During a call it is bound to a value; assignments to it
give its next value.
"""

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import errors

_OPERATORS = (
  'add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow'
  ' rpow matmul rmatmul neg abs lt le gt ge and or invert getitem'
).split()

# The prefix of the theta paths of learners.
_LEARNERS = 'learners['


class Variable:
  """A stand-in for a `tf.Variable`.

  Attributes:
    name: in TensorFlow, such as `lm/softmax/weight_0/var:0`.
    shape: a `tf.TensorShape`, with leading dimensions of stacked layers.
    dtype: a `tf.DType`.
    trainable: whether learners may train it.
    var_params: Lingvo's `WeightParams`.
    num_stacked_dims: number of leading dimensions of repeated layers that are
      stacked in one variable.
  """

  device = ''

  def __init__(
    self,
    *,
    name: str,
    shape: Any,
    dtype: Any,
    trainable: bool,
    var_params: Any,
    num_stacked_dims: int,
  ):
    self.name = name
    self.shape = shape
    self.dtype = dtype
    self.trainable = trainable
    self.var_params = var_params
    self.num_stacked_dims = num_stacked_dims
    self._graph = None
    self._value = None
    self._was_assigned = False
    self._was_read = False

  def __repr__(self):
    return f'<bridged {self.name} {self.shape} {self.dtype.name}>'

  def get_shape(self):
    """Returns the shape, as a `tf.TensorShape`."""
    return self.shape

  def read_value(self):
    """Returns the value, a tensor: the one assigned last.

    While its task is built, it has no value. Layers that read it then, for
    summaries, get NaNs, which are detected if anything is computed with them.
    """
    if self._value is None:
      return self._no_value()
    self._was_read = True
    return self._value

  def _no_value(self):
    tf = lingvo_runtime.module('tensorflow')
    nothing = math.nan if self.dtype.is_floating else 0
    return tf.cast(tf.fill(self.shape, nothing), self.dtype)

  def value(self):
    """The same as `read_value`."""
    return self.read_value()

  def assign(self, value, use_locking=False, name=None, read_value=True):
    """Assigns a tensor, and returns it.

    Raises:
      UserError: the assignment is in a loop or a branch.
    """
    del use_locking, name, read_value
    tf = lingvo_runtime.module('tensorflow')
    if self._value is None:
      raise errors.UserError(
        f'the variable {self.name} is assigned while its task is built'
      )
    if tf.compat.v1.get_default_graph() is not self._graph:
      raise errors.UserError(
        f'the variable {self.name} is assigned within a loop or a branch of a'
        ' TensorFlow graph, which a bridged task must not do; expected the'
        ' assignment outside of tf.while_loop, tf.cond and similar'
      )
    value = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
    self._value, self._was_assigned = value, True
    return value

  def assign_add(self, delta, use_locking=False, name=None, read_value=True):
    """Adds to the value; see `assign`."""
    del use_locking, name, read_value
    return self.assign(self.read_value() + self._like(delta))

  def assign_sub(self, delta, use_locking=False, name=None, read_value=True):
    """Subtracts from the value; see `assign`."""
    del use_locking, name, read_value
    return self.assign(self.read_value() - self._like(delta))

  def _like(self, value):
    return lingvo_runtime.module('tensorflow').cast(value, self.dtype)

  def bind(self, value, graph):
    """Binds the variable to a value for a call."""
    self._value, self._graph = value, graph
    self._was_assigned = self._was_read = False

  def unbind(self):
    """Removes the value."""
    self._value = self._graph = None

  @property
  def assigned(self):
    """The value assigned in this call, or None."""
    return self._value if self._was_assigned else None

  @property
  def state(self) -> tuple:
    """The value in this call, and whether it was assigned; can be set back."""
    return self._value, self._was_assigned

  @state.setter
  def state(self, state: tuple):
    self._value, self._was_assigned = state

  @property
  def was_read(self) -> bool:
    """Whether it was read in this call, or since `forget_reads`."""
    return self._was_read

  def forget_reads(self):
    """Makes `was_read` False."""
    self._was_read = False


def _operator(name: str):
  def operate(self, *others):
    tf = lingvo_runtime.module('tensorflow')
    value = tf.convert_to_tensor(self.read_value())
    return getattr(value, f'__{name}__')(*others)

  return operate


for _name in _OPERATORS:
  setattr(Variable, f'__{_name}__', _operator(_name))


@functools.cache
def _register():
  """Makes TensorFlow's functions accept stand-ins as tensors."""
  tf = lingvo_runtime.module('tensorflow')

  def convert(variable, dtype=None, name=None, as_ref=False):
    del name, as_ref
    value = variable.read_value()
    if dtype is not None and not dtype.is_compatible_with(value.dtype):
      return NotImplemented
    return value

  tf.register_tensor_conversion_function(Variable, convert)


@contextlib.contextmanager
def creating() -> Iterator[None]:
  """Makes Lingvo's layers create stand-ins.

  A repeated name gives the same variable, as for shared variables.
  """
  _register()
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  by_name = {}

  def create(next_creator, **kwargs):
    del next_creator  # It allocates.
    name = f'{kwargs["var_name"]}/var:0'
    shape = tf.TensorShape(_shape_of(kwargs))
    known = by_name.get(name)
    if known is not None and known.shape != shape:
      raise errors.UserError(
        f'two variables are called {name}, of the shapes {known.shape} and'
        f' {shape}'
      )
    if known is None:
      by_name[name] = Variable(
        name=name,
        shape=shape,
        dtype=kwargs['dtype'],
        trainable=bool(kwargs['trainable']),
        var_params=kwargs['var_params'],
        num_stacked_dims=len(py_utils.GetVariableShapePrefixes()),
      )
    return by_name[name]

  with py_utils.VariableCreatorScope(create):
    yield


def _shape_of(kwargs: Mapping[str, Any]) -> Sequence[int]:
  if kwargs['shape'] is not None:
    return kwargs['shape']
  # The initial value has the shape without stacked dimensions.
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  shape = kwargs['var_params'].init.custom_v_init.shape
  return [*py_utils.GetVariableShapePrefixes(), *shape]


def of(task: Any) -> dict[str, Variable]:
  """Returns the stand-ins of a task by theta path, without its learners'.

  Args:
    task: the Lingvo task, built under `creating`.

  Raises:
    UserError: it has a variable that is not a stand-in.
  """
  found = {
    path: variable
    for path, variable in task.vars.FlattenItems()
    if not path.startswith(_LEARNERS)
  }
  for path, variable in found.items():
    if not isinstance(variable, Variable):
      raise errors.UserError(
        f'{path} is a {type(variable).__name__} that was not created by'
        ' CreateVariable; expected all variables to be created so'
      )
  return found


@contextlib.contextmanager
def bound(
  task: Any, values: Mapping[str, Any]
) -> Iterator[dict[str, Variable]]:
  """Binds the variables of a task to values for a call.

  Args:
    task: built with stand-ins.
    values: tensors by theta path.

  Yields:
    The variables by theta path; `assigned` has their new values.
  """
  tf = lingvo_runtime.module('tensorflow')
  variables = of(task)
  graph = tf.compat.v1.get_default_graph()
  for path, variable in variables.items():
    variable.bind(tf.cast(values[path], variable.dtype), graph)
  saved = [(layer, dict(layer._private_theta)) for layer in layers_of(task)]
  try:
    for layer, theta in saved:
      layer._private_theta.update(
        {k: tf.nest.map_structure(_value, v) for k, v in theta.items()}
      )
    yield variables
  finally:
    for layer, theta in saved:
      layer._private_theta.update(theta)
    for variable in variables.values():
      variable.unbind()
    for layer, _ in saved:
      # Their tensors belong to the graph of this call.
      for accumulator in layer._private_accumulators.values():
        accumulator.Reset()


def rebind(
  task: Any, variables: Mapping[str, Variable], values: Mapping[str, Any]
):
  """Binds bound variables to other values within the same call.

  Args:
    task: built with stand-ins.
    variables: bound ones by theta path.
    values: tensors by theta path.
  """
  tf = lingvo_runtime.module('tensorflow')
  graph = tf.compat.v1.get_default_graph()
  for path, variable in variables.items():
    variable.bind(tf.cast(values[path], variable.dtype), graph)
  for layer in layers_of(task):
    layer._private_theta.update(
      {
        k: tf.nest.map_structure(_value, v)
        for k, v in layer._private_vars.items()
        if k in layer._private_theta
      }
    )


def _value(entry: Any) -> Any:
  return entry.read_value() if isinstance(entry, Variable) else entry


def layers_of(layer: Any) -> list[Any]:
  """Returns a layer and its descendants, each once."""
  found = {}

  def add(node):
    if isinstance(node, list | tuple):
      for one in node:
        add(one)
    elif isinstance(node, dict):
      for one in node.values():
        add(one)
    elif id(node) not in found:
      found[id(node)] = node
      add(dict(node.children))

  add(layer)
  return list(found.values())
