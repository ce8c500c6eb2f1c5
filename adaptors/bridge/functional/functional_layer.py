"""A Lingvo layer as functions that TensorFlow compiles and JAX calls.

FProp may take and return tensors in lists, tuples and maps, and values that are
not tensors. The functions take and return flat lists of tensors.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adaptors import lingvo_runtime
from adaptors.bridge.functional import (
  contexts,
  functional_task,
  modules,
  structures,
  variables,
)
from adaptors.bridge.functional.functional_task import FunctionalTask, Trace
from adaptors.bridge.ops import compilable, xla_ops
from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class LeafIndex:
  """The position of a leaf of a structure in the flat list.

  Attributes:
    index: the position.
  """

  index: int


def flatten(tree: Any, is_leaf: Callable[[Any], bool]) -> tuple[list, Any]:
  """Returns the leaves of a tree, and its structure.

  Unlike JAX's pytrees, the structure keeps values that are not leaves.

  >>> flatten({'x': 1.5, 'kind': 'text'}, lambda x: isinstance(x, float))
  ([1.5], {'x': LeafIndex(index=0), 'kind': 'text'})
  """
  leaves = []

  def rest(node):
    if is_leaf(node):
      leaves.append(node)
      return LeafIndex(len(leaves) - 1)
    if isinstance(node, dict):
      return {k: rest(v) for k, v in node.items()}
    if isinstance(node, tuple):
      return tuple(map(rest, node))
    return list(map(rest, node)) if isinstance(node, list) else node

  return leaves, rest(tree)


def unflatten(leaves: Sequence, structure: Any, map_class: type) -> Any:
  """Returns a tree from its leaves and structure, with maps of a class."""

  def whole(node):
    if isinstance(node, LeafIndex):
      return leaves[node.index]
    if isinstance(node, dict):
      return map_class({k: whole(v) for k, v in node.items()})
    if isinstance(node, tuple):
      return tuple(map(whole, node))
    return list(map(whole, node)) if isinstance(node, list) else node

  return whole(structure)


class FunctionalLayer(FunctionalTask):
  """A Lingvo layer whose FProp is a function.

  Attributes:
    task: the layer.
    outputs: of the last trace: the specs of the tensors, and the structure.
  """

  def __init__(self, params: Any, *, do_eval: bool, xla_device: str):
    """Builds the layer; see `FunctionalTask`."""
    self.do_eval = do_eval
    self.replacements: list[xla_ops.Replacement] = []
    self.outputs: tuple[list, Any] = [], None
    self._xla_device = xla_device
    params = functional_task.on_one_device(params)
    with self._in_lingvo(), contexts.creating():
      self.task = params.Instantiate()
    self._check_layers()
    self.variables = variables.of(self.task)
    self._unused = frozenset()

  def trace(self, losses: Sequence[str], batch: Any) -> Trace:
    """Traces the gradients without computing them.

    Args:
      losses: not used.
      batch: the arguments: a flat list of arrays or specs, and the structure.

    Raises:
      UserError: it has ops that XLA does not compile, or does something that a
        bridged layer must not do.
    """
    tf = lingvo_runtime.module('tensorflow')
    del losses
    arrays, structure = batch
    functions = self.of(structure)
    inputs = (
      {k: structures.spec_of(v) for k, v in self.variables.items()},
      structures.specs_of(list(arrays)),
      tf.TensorSpec([], tf.int32),
      tf.TensorSpec([2], tf.int32),
    )
    forward = tf.function(functions.forward, autograph=False)
    self._check_captures(forward.get_concrete_function(*inputs))
    specs = [spec for spec in self.outputs[0] if spec.dtype.is_floating]
    backward = tf.function(functions.backward, autograph=False)
    traced = backward.get_concrete_function(*inputs, specs)
    *_, statistics = traced.structured_outputs
    return Trace(
      sparse_tables=tuple(sorted(set(statistics) - self._unused)),
      unused=tuple(sorted(self._unused)),
      has_bfloat16=structures.has_bfloat16(traced),
    )

  def of(self, structure: Any) -> 'Functions':
    """Returns the layer's functions for a structure of arguments."""
    return Functions(self, structure)

  def _computed_of(self, values, arguments, step):
    """Returns FProp's outputs, and variable updates by theta path."""
    tf = lingvo_runtime.module('tensorflow')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    layer = self.task
    with (
      variables.bound(layer, values) as bound,
      tf.name_scope(layer.params.name),
      py_utils.GlobalStepContext(tf.cast(step, tf.int64)),
    ):
      py_utils.ResetStepSeed()
      outputs = layer.FProp(layer.theta, *arguments)
      if not self.do_eval:
        self._update_after_step(bound)
        if self.updates_by_weights:
          raise errors.UserError(
            f'{layer.path}: PostTrainingStepUpdate reads weights, which is not'
            ' supported for a layer that is bridged without its task; expected'
            ' --translation=bridge'
          )
      updates = {
        path: v.assigned for path, v in bound.items() if v.assigned is not None
      }
    self._check_updates(updates)
    return outputs, updates


@dataclasses.dataclass(frozen=True)
class Functions:
  """The functions of a layer for one structure of arguments.

  Attributes:
    layer: the layer.
    structure: of the arguments; see `flatten`.
  """

  layer: FunctionalLayer
  structure: Any

  def forward(
    self, values: Mapping[str, Any], arrays: Sequence, step: Any, seed: Any
  ) -> tuple[list, dict]:
    """Runs FProp.

    Args:
      values: of all variables, tensors by theta path.
      arrays: the tensors in the arguments.
      step: [], number of steps.
      seed: [2], int32, of random numbers.

    Returns:
      The tensors in FProp's outputs, and variable updates by theta path.
    """
    layer = self.layer
    with modules.holding(layer._modules, values):
      results, updates = compilable.compilable(self._forward)(
        dict(values), list(arrays), step, seed
      )
      updates = {**updates, **layer._updates_of_modules()}
    return results, updates

  def backward(
    self,
    values: Mapping[str, Any],
    arrays: Sequence,
    step: Any,
    seed: Any,
    cotangents: Sequence,
  ) -> tuple[dict, list, dict]:
    """Recomputes FProp, and computes gradients.

    Args:
      values: see `forward`.
      arrays: see `forward`.
      step: see `forward`.
      seed: see `forward`; the same seed gives the same random numbers.
      cotangents: of the float outputs.

    Returns:
      Gradients by theta path, gradients by the float arguments, and row
      statistics of sparse gradients; see `FunctionalTask.with_gradients`.
    """
    with modules.holding(self.layer._modules, values):
      return compilable.compilable(self._backward)(
        dict(values), list(arrays), step, seed, list(cotangents)
      )

  def _forward(self, values, arrays, step, seed):
    with self.layer._in_lingvo(), xla_ops.replaced(seed) as replacements:
      results, updates = self._run(values, arrays, step)
      self.layer.replacements = list(replacements)
    return results, updates

  def _backward(self, values, arrays, step, seed, cotangents):
    tf = lingvo_runtime.module('tensorflow')
    layer = self.layer
    floats = [x for x in arrays if x.dtype.is_floating]
    trained = {path: layer._source(path, values) for path in layer.trained}
    with (
      layer._in_lingvo(),
      xla_ops.replaced(seed),
      tf.GradientTape() as tape,
    ):
      for source in (*trained.values(), *floats):
        tape.watch(source)
      results, _ = self._run(values, arrays, step)
      results = [x for x in results if x.dtype.is_floating]
      gradients, by_float = tape.gradient(
        results, [trained, floats], output_gradients=cotangents
      )
    layer._unused = frozenset(k for k, g in gradients.items() if g is None)
    by_float = [
      tf.zeros_like(x) if g is None else tf.convert_to_tensor(g)
      for g, x in zip(by_float, floats, strict=True)
    ]
    statistics = layer._row_statistics(gradients)
    return layer._dense(gradients, values), by_float, statistics

  def _run(self, values, arrays, step):
    tf = lingvo_runtime.module('tensorflow')
    nested_map = lingvo_runtime.module('lingvo.core.nested_map').NestedMap
    arguments = unflatten(arrays, self.structure, nested_map)
    outputs, updates = self.layer._computed_of(values, arguments, step)
    results, structure = flatten(outputs, tf.is_tensor)
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in results]
    self.layer.outputs = specs, structure
    return results, updates
