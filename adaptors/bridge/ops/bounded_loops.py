"""Gives `tf.while_loop`s the bound that XLA needs to differentiate them.

The gradient of a loop needs lists of all its intermediate values, whose size
XLA must know. A loop without `maximum_iterations` is bounded here if its
condition compares a counter with a number that is known while it is traced:

  tf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, f(x)), (0, x))

The counter must be a whole number that each iteration changes by a constant.
Other loops are left alone; `unbounded` finds those of a traced function that
XLA will refuse.
"""

import inspect
import pathlib
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from adaptors import lingvo_runtime
from pax_compat import errors

_ADAPTORS = str(pathlib.Path(lingvo_runtime.__file__).parent)
_MODULE = 'tensorflow.python.ops.while_v2'
_LOOPS = ('While', 'StatelessWhile')
_BODY = 'WhileBodyFuncGraph'
_LIST = 'EmptyTensorList'
_SAME = ('Identity', 'Squeeze', 'Reshape', 'EnsureShape', 'StopGradient')
# Comparisons as (whether the first is smaller, whether they may be equal).
_COMPARISONS = {
  'Less': (True, False),
  'LessEqual': (True, True),
  'Greater': (False, False),
  'GreaterEqual': (False, True),
}
_OPPOSITES = {
  'Less': 'GreaterEqual',
  'LessEqual': 'Greater',
  'Greater': 'LessEqual',
  'GreaterEqual': 'Less',
}
_ARITHMETIC = {
  'Add': np.add,
  'AddV2': np.add,
  'Sub': np.subtract,
  'Mul': np.multiply,
  'Maximum': np.maximum,
  'Minimum': np.minimum,
  'FloorDiv': np.floor_divide,
}
# The loops that are being traced, the innermost last.
_traced = threading.local()


class UnboundedLoopError(errors.UserError):
  """A differentiated loop has no bound, for whatever device it is traced."""


class _Bound(Exception):  # noqa: N818 (not an error)
  """Ends the trace of a loop whose bound was found.

  Attributes:
    steps: the largest number of iterations.
  """

  def __init__(self, steps: int):
    super().__init__(steps)
    self.steps = steps


class _Counter(NamedTuple):
  """A loop variable plus a constant; only a constant without a variable.

  Attributes:
    index: of the loop variable, or None.
    plus: the constant.
  """

  index: int | None
  plus: int


def replacements() -> dict[str, Callable]:
  """Returns the replacements of functions; see `function_replacing`."""
  while_v2 = lingvo_runtime.module(_MODULE)
  signature = inspect.signature(while_v2.while_loop)

  def while_loop(original, *args, **kwargs):
    given = signature.bind(*args, **kwargs)
    if given.arguments.get('maximum_iterations') is not None:
      with _tracing(False):
        return original(*args, **kwargs)
    try:
      with _tracing(True):
        return original(*args, **kwargs)
    except _Bound as bound:
      given.arguments['maximum_iterations'] = bound.steps
    with _tracing(False):
      return original(*given.args, **given.kwargs)

  def build(original, loop_vars, cond_graph, body_graph, *args, **kwargs):
    # Loops of gradients have other classes of functions.
    is_own = type(body_graph).__name__ == _BODY
    if is_own and getattr(_traced, 'loops', [False])[-1]:
      steps = _Loop(loop_vars, cond_graph, body_graph).bound()
      if steps is not None:
        raise _Bound(steps)
    return original(loop_vars, cond_graph, body_graph, *args, **kwargs)

  return {
    f'{_MODULE}.while_loop': while_loop,
    f'{_MODULE}._build_while_op': build,
  }


class _tracing:  # noqa: N801 (used as a function)
  """Within it a loop is traced, whose bound is wanted or not."""

  def __init__(self, is_wanted: bool):
    self._is_wanted = is_wanted

  def __enter__(self):
    if not hasattr(_traced, 'loops'):
      _traced.loops = []
    _traced.loops.append(self._is_wanted)

  def __exit__(self, *unused_error):
    _traced.loops.pop()


def unbounded(graph: Any) -> Iterator[tuple[str, str]]:
  """Yields the name and the place in the code of loops that XLA refuses.

  Args:
    graph: a `FuncGraph`; the functions that it calls are searched, too.
  """
  for op in graph.get_operations():
    for inner in _functions_of(op, graph):
      yield from unbounded(inner)
    if op.type in _LOOPS and any(map(_is_endless_list, op.inputs)):
      yield op.name, _location(op)


def _functions_of(op, graph) -> Iterator[Any]:
  for name in ('body', 'f', 'then_branch', 'else_branch'):
    try:
      function = op.get_attr(name)
    except ValueError:
      continue
    found = graph._get_function(getattr(function, 'name', ''))
    inner = getattr(found, 'graph', None)
    if inner is not None:
      yield inner


def _is_endless_list(tensor) -> bool:
  """Whether a tensor is a list whose size is not limited."""
  op = tensor.op
  if op.type != _LIST:
    return False
  size = _value(op.inputs[1])
  return size is None or size < 0


def _location(op) -> str:
  """Returns `file:line` in the user's code, or else in Lingvo's."""
  paths = sysconfig.get_paths()
  installed = tuple(paths[k] for k in ('stdlib', 'purelib', 'platlib'))
  frames = [
    (frame.filename, frame.lineno)
    for frame in op.traceback
    if not frame.filename.startswith('<')
    and '/tensorflow/' not in frame.filename
    and not frame.filename.startswith(_ADAPTORS)
  ]
  own = [frame for frame in frames if not frame[0].startswith(installed)]
  for found in (own, frames):
    if found:
      file, line = found[-1]
      return f'{file}:{line}'
  return ''


class _Loop:
  """A traced loop.

  Inputs and outputs of its two functions correspond by position.
  """

  def __init__(self, loop_vars, cond_graph, body_graph):
    """Takes the arguments of TensorFlow's `_build_while_op`."""
    self._loop_vars = list(loop_vars)
    self._cond, self._body = cond_graph, body_graph

  def bound(self) -> int | None:
    """Returns the largest number of iterations, or None if it is unknown."""
    found = [
      steps
      for op, is_negated in _conditions(self._cond.outputs[0])
      if (steps := self._steps(op, is_negated)) is not None
    ]
    return min(found, default=None)

  def _steps(self, op, is_negated: bool) -> int | None:
    """Returns after how many iterations a comparison is false."""
    kind = _OPPOSITES.get(op.type) if is_negated else op.type
    if kind not in _COMPARISONS:
      return None
    first, second = (self._counter(x, self._cond) for x in op.inputs)
    if first is None or second is None:
      return None
    is_smaller, may_be_equal = _COMPARISONS[kind]
    if not is_smaller:
      first, second = second, first
    # Now it goes on while first < second, or first <= second.
    counter = second if first.index is None else first
    if (first.index is None) == (second.index is None):
      return None
    start = _value(self._loop_vars[counter.index])
    step = self._step(counter.index)
    if counter is second:
      step = None if step is None else -step
    if start is None or not step or step < 0:
      return None
    distance = second.plus - first.plus + int(may_be_equal)
    distance += int(start) if counter is second else -int(start)
    return max(1, -(-distance // step))

  def _counter(self, tensor, graph) -> _Counter | None:
    """Returns a whole number of a function as a counter."""
    if not tensor.dtype.is_integer:
      return None
    value = _value(tensor)
    if value is not None:
      return _Counter(None, int(value)) if np.ndim(value) == 0 else None
    op = tensor.op
    if op.type in (*_SAME, 'Cast'):
      return self._counter(op.inputs[0], graph)
    if op.type in ('Add', 'AddV2', 'Sub'):
      return _sum(
        *(self._counter(x, graph) for x in op.inputs),
        sign=-1 if op.type == 'Sub' else 1,
      )
    index = next((i for i, x in enumerate(graph.inputs) if x is tensor), None)
    if index is None:
      return None
    if self._is_kept(index):
      value = _value(self._loop_vars[index])
      return None if np.ndim(value) else _constant(value)
    return _Counter(index, 0)

  def _step(self, index: int) -> int | None:
    """Returns by how much an iteration changes a loop variable."""
    after = self._counter(self._body.outputs[index], self._body)
    if after is None or after.index != index:
      return None
    return after.plus

  def _is_kept(self, index: int) -> bool:
    """Whether a loop variable never changes."""
    tensor = self._body.outputs[index]
    while tensor.op.type == 'Identity':
      tensor = tensor.op.inputs[0]
    return tensor is self._body.inputs[index]


def _conditions(tensor, is_negated: bool = False) -> Iterator[tuple[Any, bool]]:
  """Yields (op, whether it is negated) of conditions that must all hold."""
  op = tensor.op
  if op.type in _SAME:
    yield from _conditions(op.inputs[0], is_negated)
  elif op.type == 'LogicalNot':
    yield from _conditions(op.inputs[0], not is_negated)
  elif op.type == ('LogicalOr' if is_negated else 'LogicalAnd'):
    for x in op.inputs:
      yield from _conditions(x, is_negated)
  else:
    yield op, is_negated


def _sum(one: _Counter | None, other: _Counter | None, *, sign: int):
  if one is None or other is None:
    return None
  if other.index is not None and (one.index is not None or sign < 0):
    return None
  index = one.index if other.index is None else other.index
  return _Counter(index, one.plus + sign * other.plus)


def _constant(value) -> _Counter | None:
  return None if value is None else _Counter(None, int(value))


def _value(tensor) -> np.ndarray | None:
  """Returns the value of a whole number that is known, else None."""
  tensor_util = lingvo_runtime.module('tensorflow.python.framework.tensor_util')
  value = tensor_util.constant_value(tensor)
  if value is not None or not hasattr(tensor, 'op'):
    return value
  op = tensor.op
  if op.type in (*_SAME, 'Cast'):
    return _value(op.inputs[0])
  if op.type in _ARITHMETIC:
    values = [_value(x) for x in op.inputs]
    known = all(x is not None for x in values)
    return _ARITHMETIC[op.type](*values) if known else None
  if op.type == 'StridedSlice':
    return _sliced(op)
  captures = getattr(op.graph, 'captures', ())
  for outer, inner in captures:
    if inner is tensor:
      return None if outer is tensor else _value(outer)
  return None


def _sliced(op) -> np.ndarray | None:
  """Returns the element that an op takes from a known vector, or None."""
  begin = _value(op.inputs[1])
  if (
    begin is None or np.size(begin) != 1 or op.get_attr('shrink_axis_mask') != 1
  ):
    return None
  at, source = int(np.ravel(begin)[0]), op.inputs[0].op
  if source.type == 'Shape' and source.inputs[0].shape.rank is not None:
    size = source.inputs[0].shape.as_list()[at]
    return None if size is None else np.asarray(size)
  values = _value(op.inputs[0])
  return None if np.ndim(values) != 1 else np.asarray(values[at])


def refusal(loops: list[tuple[str, str]]) -> UnboundedLoopError:
  """Returns the error that lists loops which XLA refuses."""
  lines = [f'  {place or "unknown place"}: {name}' for name, place in loops]
  return UnboundedLoopError(
    'the task differentiates a tf.while_loop whose number of iterations is not'
    ' known when it is compiled; expected maximum_iterations=..., or a'
    ' condition that compares a counter with a constant, as in i < 10:\n'
    + '\n'.join(lines)
  )
