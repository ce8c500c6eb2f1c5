"""Records the outputs of a Lingvo task's layers, and its learners' gradients.

Layers are named by theta path, such as `lm.trans[0].fflayer`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Methods whose outputs are recorded: they map a layer's input to its output.
_METHODS = (
  'FProp',
  'EmbLookup',
  'EmbLookupDefaultTheta',
  'ComputeContextVectorWithSource',
)
# The key of the main activation in the maps of Lingvo's builders.
_VECTORS = 'vec'
# Ops whose outputs do not depend on the values of their inputs.
_VALUELESS = ('ZerosLike', 'OnesLike')
# Ops that draw random numbers, by parts of their names.
_RANDOM = ('Random', 'TruncatedNormal', 'Multinomial', 'Stateful', 'Rng')
_NOT_RANDOM = ('StatefulPartitionedCall', 'StatelessRandomGet')
_SAMPLERS = ('LogUniformCandidateSampler', 'UniformCandidateSampler')


@dataclasses.dataclass(frozen=True)
class Output:
  """An output of a layer's call.

  Attributes:
    path: of the layer.
    name: of the tensor in a map; '' for a single output.
    tensor: the tensor.
  """

  path: str
  name: str
  tensor: Any


class Recorder:
  """Records outputs of layers, in the order of computation, and gradients.

  Attributes:
    outputs: float outputs so far.
    gradients: of the learners, before clipping, by variable name. They are
      recorded since some graphs can be differentiated only once.
    ops_before: number of ops of the graph before the task was called.
  """

  def __init__(self):
    self.ops_before = 0
    self.outputs: list[Output] = []
    self.gradients: dict[str, Any] = {}

  def watch(self, task: Any):
    """Replaces methods of a task's layers and optimizers by recording ones."""
    for learner in task.learners:
      optimizer = learner.optimizer
      optimizer.ComputeGradients = self._recording_gradients(
        optimizer.ComputeGradients
      )
    for path, layer in _descendants(task, ''):
      for name in _METHODS:
        method = getattr(layer, name, None)
        if method is not None:
          setattr(layer, name, self._recording(path, method))

  def _recording(self, path: str, method):
    def call(*args, **kwargs):
      result = method(*args, **kwargs)
      self._record(path, result)
      return result

    return call

  def _recording_gradients(self, compute):
    def call(*args, **kwargs):
      result = compute(*args, **kwargs)
      for pair in result.Flatten():
        if pair.grad is not None:
          self.gradients[pair.var.name] = pair.grad
      return result

    return call

  def _record(self, path: str, result: Any):
    for name, tensor in by_name(result).items():
      # Tensors in loops and functions cannot be fetched.
      if _is_of_floats(tensor) and _is_outermost(tensor):
        known = any(tensor is o.tensor for o in self.outputs if o.path == path)
        if not known:
          self.outputs.append(Output(path, name, tensor))


def by_name(result: Any) -> Mapping[str, Any]:
  """Returns a layer's outputs by name; '' for a single output.

  Of a tuple it uses the first element; others are states and the like.
  """
  while isinstance(result, (tuple, list)) and len(result):
    result = result[0]
  if not isinstance(result, Mapping):
    return {'': result}
  found = {k: v for k, v in result.items() if not isinstance(v, Mapping)}
  if _VECTORS in found:
    found[''] = found.pop(_VECTORS)
  return found


def _descendants(layer: Any, path: str) -> Iterator[tuple[str, Any]]:
  """Yields the layers below one, with their paths."""
  for name, child in layer.children.items():
    if name != 'input':
      yield from _named(child, f'{path}.{name}' if path else name)


def _named(child: Any, path: str) -> Iterator[tuple[str, Any]]:
  """Yields the layers of a child: a layer, or a list or map of layers."""
  if isinstance(child, (list, tuple)):
    for i, item in enumerate(child):
      yield from _named(item, f'{path}[{i}]')
  elif isinstance(child, Mapping):
    for name, item in child.items():
      yield from _named(item, f'{path}.{name}')
  elif hasattr(child, 'children'):
    yield path, child
    yield from _descendants(child, path)


def _is_of_floats(tensor: Any) -> bool:
  return hasattr(tensor, 'dtype') and tensor.dtype.is_floating


def _is_outermost(tensor: Any) -> bool:
  """Whether a tensor can be fetched: it is not in a function or loop."""
  if not hasattr(tensor, 'op'):
    return False
  is_in_function = hasattr(tensor.graph, 'outer_graph')
  return not is_in_function and tensor.op._get_control_flow_context() is None


class Dependencies:
  """Data dependencies between tensors of a graph."""

  def __init__(self, graph: Any, tensors: Iterable[Any]):
    """Reads a graph.

    Args:
      graph: a TensorFlow graph.
      tensors: tensors of the graph, referred to by index below.
    """
    tensors = list(tensors)
    own = {}
    for i, tensor in enumerate(tensors):
      own[tensor.ref()] = own.get(tensor.ref(), 0) | 1 << i
    self._bits = {}
    # A graph lists its ops in topological order.
    for op in graph.get_operations():
      bits = 0
      if op.type not in _VALUELESS:
        for tensor in op.inputs:
          if tensor.dtype.is_floating:
            bits |= self._bits.get(tensor.ref(), 0)
      for tensor in op.outputs:
        self._bits[tensor.ref()] = bits | own.get(tensor.ref(), 0)

  def of(self, tensor: Any, index: int) -> bool:
    """Whether a tensor depends on the tensor with an index."""
    return bool(self._bits.get(tensor.ref(), 0) >> index & 1)


def random_ops(graph: Any, after: int) -> tuple[str, ...]:
  """Returns the ops of a graph that draw random numbers, as `type in scope`.

  Args:
    graph: a TensorFlow graph.
    after: number of its first ops that are left out, such as initializers.
  """
  return tuple(
    dict.fromkeys(
      f'{op.type} in {op.name.rpartition("/")[0]}'
      for op in graph.get_operations()[after:]
      if any(part in op.type for part in _RANDOM)
      and not op.type.startswith(_NOT_RANDOM)
    )
  )


def samplers(graph: Any) -> list[Any]:
  """Returns the ops of a graph that sample classes for a softmax."""
  return [op for op in graph.get_operations() if op.type in _SAMPLERS]
