"""What the layers and learners of a Lingvo task compute in its graph.

A layer is called by its theta path, such as `lm.trans[0].fflayer`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Methods whose results are kept: what a layer computes from its input.
_METHODS = (
  'FProp',
  'EmbLookup',
  'EmbLookupDefaultTheta',
  'ComputeContextVectorWithSource',
)
# What Lingvo's builders call what goes from layer to layer in a map.
_VECTORS = 'vec'
# Ops whose results have the values of none of their inputs.
_VALUELESS = ('ZerosLike', 'OnesLike')
_RANDOM = (
  'RandomUniform',
  'RandomStandardNormal',
  'TruncatedNormal',
  'RandomGamma',
  'Multinomial',
)
_SAMPLERS = ('LogUniformCandidateSampler', 'UniformCandidateSampler')


@dataclasses.dataclass(frozen=True)
class Output:
  """What a call of a layer gave out.

  Attributes:
    path: of the layer.
    name: of the tensor among several by name; '' where there is one.
    tensor: the tensor.
  """

  path: str
  name: str
  tensor: Any


class Recorder:
  """Keeps what layers give out, in the order in which they compute it.

  Attributes:
    outputs: what was given out so far, of floats.
    gradients: as learners compute them, before any clipping, by the names of
      variables. Some graphs can be differentiated only once, by the learner.
  """

  def __init__(self):
    self.outputs: list[Output] = []
    self.gradients: dict[str, Any] = {}

  def watch(self, task: Any):
    """Keeps from now on what the layers and learners of a task compute."""
    for learner in task.learners:
      optimizer = learner.optimizer
      optimizer.ComputeGradients = self._kept_gradients(
        optimizer.ComputeGradients
      )
    for path, layer in _descendants(task, ''):
      for name in _METHODS:
        method = getattr(layer, name, None)
        if method is not None:
          setattr(layer, name, self._kept(path, method))

  def _kept(self, path: str, method):
    def kept(*args, **kwargs):
      result = method(*args, **kwargs)
      self._keep(path, result)
      return result

    return kept

  def _kept_gradients(self, compute):
    def kept(*args, **kwargs):
      result = compute(*args, **kwargs)
      for pair in result.Flatten():
        if pair.grad is not None:
          self.gradients[pair.var.name] = pair.grad
      return result

    return kept

  def _keep(self, path: str, result: Any):
    for name, tensor in by_name(result).items():
      # In loops and functions there are values for each of their steps only.
      if _is_of_floats(tensor) and _is_outermost(tensor):
        known = any(tensor is o.tensor for o in self.outputs if o.path == path)
        if not known:
          self.outputs.append(Output(path, name, tensor))


def by_name(result: Any) -> Mapping[str, Any]:
  """Returns what a layer computes, by name; '' is that of a single result.

  Of a tuple the first element counts: others are states and the like.
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
  """Yields the layers in a child: a layer, or a list or map of them."""
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
  """Whether a tensor can be fetched: it is in no function and in no loop."""
  if not hasattr(tensor, 'op'):
    return False
  is_in_function = hasattr(tensor.graph, 'outer_graph')
  return not is_in_function and tensor.op._get_control_flow_context() is None


class Dependencies:
  """Which tensors of a graph are computed from which."""

  def __init__(self, graph: Any, tensors: Iterable[Any]):
    """Reads a graph.

    Args:
      graph: a TensorFlow graph.
      tensors: of it; the index of each stands for it.
    """
    tensors = list(tensors)
    own = {}
    for i, tensor in enumerate(tensors):
      own[tensor.ref()] = own.get(tensor.ref(), 0) | 1 << i
    self._random = 1 << len(tensors)
    self._bits = {}
    # A graph holds its ops in an order in which inputs come first.
    for op in graph.get_operations():
      bits = self._random if op.type in _RANDOM else 0
      if op.type not in _VALUELESS:
        for tensor in op.inputs:
          if tensor.dtype.is_floating:
            bits |= self._bits.get(tensor.ref(), 0)
      for tensor in op.outputs:
        self._bits[tensor.ref()] = bits | own.get(tensor.ref(), 0)

  def of(self, tensor: Any, index: int) -> bool:
    """Whether a tensor is computed from the one that has an index."""
    return bool(self._bits.get(tensor.ref(), 0) >> index & 1)

  def is_random(self, tensor: Any) -> bool:
    """Whether random numbers have part in a tensor."""
    return bool(self._bits.get(tensor.ref(), 0) & self._random)


def samplers(graph: Any) -> list[Any]:
  """Returns the ops of a graph that draw candidates of a softmax."""
  return [op for op in graph.get_operations() if op.type in _SAMPLERS]
