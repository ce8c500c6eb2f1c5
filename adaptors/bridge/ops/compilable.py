"""Finds ops that XLA cannot compile, and prunes unused ones.

XLA refuses a function for any op without an XLA kernel, even if its result is
not used. Unused ops are pruned here; the others are reported, with their Lingvo
layers, before anything is compiled.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from adaptors import lingvo_runtime
from adaptors.bridge.ops import bounded_loops, summaries
from pax_compat import errors

_DEVICE = 'XLA_CPU_JIT'

# Ops for arguments, calls and control flow, which XLA compiles.
_STRUCTURE = frozenset(
  'Placeholder NoOp _Arg _Retval PartitionedCall StatefulPartitionedCall If'
  ' StatelessIf While StatelessWhile Case StatelessCase'.split()
)

# Ops with outputs of dynamic shapes (which depend on values), and ops that XLA
# computes wrongly, without an error, for inputs of dynamic shapes.
_DYNAMIC = frozenset('Where Unique UniqueV2 DynamicPartition'.split())
_WRONG = frozenset('Unique UniqueV2 Cumsum Cumprod'.split())

_PYTHON = frozenset({'EagerPyFunc', 'PyFunc', 'PyFuncStateless'})


class Refused(NamedTuple):
  """An op that XLA does not compile.

  Attributes:
    op: its type, such as `StringJoin`.
    scope: its name scope, with the Lingvo layer; '' for none.
    advice: how to avoid it.
  """

  op: str
  scope: str
  advice: str


def compilable(function: Callable) -> Callable:
  """Returns an equivalent function for `jax2tf.call_tf`.

  Args:
    function: takes and returns nested tensors.

  Returns:
    A function without unused ops that XLA refuses. Tracing it raises a
    UserError if XLA refuses an op that is used.
  """

  def call(*args):
    tf = lingvo_runtime.module('tensorflow')
    traced = tf.function(function, autograph=False).get_concrete_function(*args)
    for name in sorted(_drawing(_nodes(traced.function_def))):
      summaries.log_left_out(name)
    refused = uncompilable_ops(traced)
    if refused:
      raise refusal(refused)
    endless = list(dict.fromkeys(bounded_loops.unbounded(traced.graph)))
    if endless:
      raise bounded_loops.refusal(endless)
    return _without_unused(traced)(*args)

  return call


def uncompilable_ops(concrete_function: Any) -> list[Refused]:
  """Returns the used ops that XLA refuses.

  Args:
    concrete_function: a `tf.ConcreteFunction`. Dynamic shapes are only found
      for its outputs; XLA may refuse them elsewhere, too.
  """
  nodes = _nodes(concrete_function.function_def)
  needed = _needed(concrete_function.function_def, nodes)
  functions = _functions()
  found = [
    Refused(op, scope, _advice(op))
    for name in nodes
    if name in needed
    for op, scope in _refused(nodes[name], functions, '')
  ]
  refused = {(op, scope) for op, scope, _ in found}
  dynamic = _dynamic_shapes(concrete_function.outputs)
  found += [r for r in dynamic if (r.op, r.scope) not in refused]
  found += _wrong(concrete_function.graph)
  return list(dict.fromkeys(found))


def refusal(refused: Sequence[Refused]) -> errors.UserError:
  """Returns the error that lists the refused ops."""
  lines = [
    f'  {op} in {scope or "no name scope"}: {advice}'
    for op, scope, advice in refused
  ]
  return errors.UserError(
    'the task uses TensorFlow ops that XLA cannot compile, so it cannot be'
    ' bridged; expected other ops instead of:\n' + '\n'.join(lines)
  )


def _without_unused(concrete_function):
  """Returns a function, without its unused ops if XLA refuses any of them."""
  nodes = _nodes(concrete_function.function_def)
  needed = _needed(concrete_function.function_def, nodes)
  unused = [node for name, node in nodes.items() if name not in needed]
  functions = _functions()
  if not any(found for x in unused for found in _refused(x, functions, '')):
    return concrete_function
  tf = lingvo_runtime.module('tensorflow')
  func_graph = lingvo_runtime.module('tensorflow.python.framework.func_graph')
  lifting = lingvo_runtime.module('tensorflow.python.eager.lift_to_graph')
  graph = concrete_function.graph
  with graph.outer_graph.as_default():
    pruned = func_graph.FuncGraph(graph.name)
  lifted = lifting.lift_to_graph(
    graph.outputs, pruned, sources=graph.inputs, base_graph=graph
  )
  pruned.inputs = [lifted[x] for x in graph.inputs]
  pruned.outputs = [lifted[x] for x in graph.outputs]
  pruned.structured_outputs = tf.nest.map_structure(
    lambda x: lifted[x] if tf.is_tensor(x) else x, graph.structured_outputs
  )
  pruned.structured_input_signature = graph.structured_input_signature
  for external, internal in graph.captures:
    pruned.add_capture(external, lifted[internal])
  for function in graph._functions.values():
    pruned._add_function(function)
  return type(concrete_function).from_func_graph(
    pruned, concrete_function.function_type, {}
  )


def _nodes(function_def) -> dict[str, Any]:
  """Returns the nodes of a function by name, in order."""
  return {node.name: node for node in function_def.node_def}


def _needed(function_def, nodes) -> set[str]:
  """Returns the names of the nodes that the outputs depend on.

  Nodes that only draw summaries are not among them.
  """
  drawing = _drawing(nodes)
  open_names = [*function_def.ret.values(), *function_def.control_ret.values()]
  needed = set()
  while open_names:
    name, is_order = _name_of(open_names.pop())
    if is_order and name in drawing:
      continue
    if name in nodes and name not in needed:
      needed.add(name)
      open_names.extend(nodes[name].input)
  return needed


def _name_of(reference: str) -> tuple[str, bool]:
  """Returns a node's name, and whether only its order matters.

  References are `name`, `name:output:0`, or `^name` for order only; so are the
  nodes that a function runs for their effects, which have no output.
  """
  return reference.lstrip('^').split(':')[0], ':' not in reference


def _drawing(nodes) -> set[str]:
  """Returns the names of nodes of Python code that only summaries use.

  TensorFlow keeps them, since Python code may have effects.
  """
  users: dict[str, list[str]] = {}
  for node in nodes.values():
    for reference in node.input:
      name, is_order = _name_of(reference)
      if not is_order:
        users.setdefault(name, []).append(node.name)

  def is_for_summaries(name: str) -> bool:
    if 'Summary' in nodes[name].op:
      return True
    used = users.get(name, ())
    return bool(used) and all(map(is_for_summaries, used))

  return {
    node.name
    for node in nodes.values()
    if node.op in _PYTHON and is_for_summaries(node.name)
  }


def _functions() -> Any:
  """Returns the registry of this process's functions by name."""
  return lingvo_runtime.module('tensorflow.python.eager.context').context()


def _refused(node, functions: Any, scope: str) -> Iterator[tuple[str, str]]:
  """Yields type and name scope of refused ops: a node, or nodes within it.

  Args:
    node: a `NodeDef`.
    functions: see `_functions`.
    scope: the name scope of the function that contains it.
  """
  own_scope = node.name.rpartition('/')[0]
  # Names in branches and loops already include the op's name.
  is_full = not scope or f'{own_scope}/'.startswith(f'{scope}/')
  path = own_scope if is_full else '/'.join(filter(None, [scope, own_scope]))
  if functions.has_function(node.op):
    inner = [node.op]
  else:
    inner = [
      name
      for value in node.attr.values()
      for name in [value.func.name, *(f.name for f in value.list.func)]
      if name and functions.has_function(name)
    ]
    if not _is_compiled(node):
      yield node.op, path
  for name in inner:
    for child in functions.get_function_def(name).node_def:
      yield from _refused(child, functions, path)


def _is_compiled(node) -> bool:
  """Whether XLA has a kernel for a node with its types."""
  if node.op in _STRUCTURE:
    return True
  types = {name: _types(value) for name, value in node.attr.items()}
  return any(
    all(types.get(name, allowed) <= allowed for name, allowed in kernel.items())
    for kernel in _kernels(node.op)
  )


def _types(value) -> set[int]:
  """Returns the types in an attribute of a node."""
  return {value.type} if value.type else set(value.list.type)


@functools.cache
def _kernels(op: str) -> list[dict[str, set]]:
  """Returns the allowed types by attribute of each XLA kernel of an op."""
  _register_kernels()
  kernels = lingvo_runtime.module('tensorflow.python.framework.kernels')
  return [
    {
      constraint.name: set(constraint.allowed_values.list.type)
      for constraint in kernel.constraint
    }
    for kernel in kernels.get_registered_kernels_for_op(op).kernel
    if kernel.device_type == _DEVICE
  ]


@functools.cache
def _register_kernels() -> None:
  """Makes TensorFlow register XLA's kernels, which it does at first use."""
  tf = lingvo_runtime.module('tensorflow')
  function = tf.function(lambda: tf.zeros([]), jit_compile=True)
  with tf.init_scope():
    function.experimental_get_compiler_ir()(stage='hlo')


def _dynamic_shapes(outputs) -> list[Refused]:
  """Returns the ops that give outputs a dynamic shape."""
  found, seen = [], set()
  unknown = [x.op for x in outputs if not x.shape.is_fully_defined()]
  while unknown:
    op = unknown.pop()
    if op in seen:
      continue
    seen.add(op)
    before = [x.op for x in op.inputs if not x.shape.is_fully_defined()]
    unknown.extend(before)
    if not before:
      scope = op.name.rpartition('/')[0]
      advice = (
        'its output has a dynamic shape, and so has an output of the task; use'
        ' a static shape: pad it, and mask with weights or paddings'
      )
      found.append(Refused(op.type, scope, advice))
  return found


def _wrong(graph) -> list[Refused]:
  """Returns the ops that XLA computes wrongly because of dynamic shapes."""
  found, dynamic = [], set()
  for op in graph.get_operations():
    unknown = [x for x in op.outputs if not x.shape.is_fully_defined()]
    is_of_dynamic = any(x.ref() in dynamic for x in op.inputs)
    if is_of_dynamic and (op.type in _WRONG or _counts_from_the_end(op)):
      advice = (
        'XLA computes this wrongly for arrays of dynamic shapes, such as the'
        ' outputs of tf.where, tf.boolean_mask or tf.unique; keep all rows, and'
        ' mask with weights or paddings'
      )
      found.append(Refused(op.type, op.name.rpartition('/')[0], advice))
    if op.type in _DYNAMIC or is_of_dynamic:
      dynamic.update(x.ref() for x in unknown)
  return found


def _counts_from_the_end(op) -> bool:
  """Whether an op is a slice with negative indices."""
  if op.type != 'StridedSlice':
    return False
  tensor_util = lingvo_runtime.module('tensorflow.python.framework.tensor_util')
  for limit, mask in zip(
    op.inputs[1:3],
    (op.get_attr('begin_mask'), op.get_attr('end_mask')),
    strict=True,
  ):
    indices = tensor_util.constant_value(limit)
    is_masked = [
      mask >> i & 1 for i in range(0 if indices is None else len(indices))
    ]
    if indices is None or any(
      index < 0 and not masked
      for index, masked in zip(indices, is_masked, strict=True)
    ):
      return True
  return False


def _advice(op: str) -> str:
  """Returns how to avoid an op without an XLA kernel."""
  if op in _PYTHON:
    return (
      'Python code cannot run in a compiled model; write it with TensorFlow'
      ' ops, or move it to the input generator'
    )
  if op.startswith('Random'):
    return (
      'random numbers of this distribution cannot be compiled; compute them'
      ' from uniform or normal ones'
    )
  if _is_lingvos(op):
    return (
      'a native op of Lingvo, for CPUs only; move it to the input generator, or'
      ' remove the decoding that it belongs to from training'
    )
  if _has_strings(op):
    return (
      'accelerators do not support strings; move this to the input generator,'
      ' and pass ids to the model'
    )
  return (
    'XLA has no kernel of this op for these types; use other ops, or move it to'
    ' the input generator'
  )


def _has_strings(op: str) -> bool:
  """Whether an op has strings as inputs or outputs."""
  tf = lingvo_runtime.module('tensorflow')
  registry = lingvo_runtime.module(
    'tensorflow.python.framework.op_def_registry'
  )
  definition = registry.get(op)
  return definition is not None and any(
    arg.type == tf.string.as_datatype_enum
    for arg in [*definition.input_arg, *definition.output_arg]
  )


def _is_lingvos(op: str) -> bool:
  """Whether an op comes from Lingvo's native library."""
  library = lingvo_runtime.module('lingvo.core.ops').gen_x_ops
  return op in vars(library)
