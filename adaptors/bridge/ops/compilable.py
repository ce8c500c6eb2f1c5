"""What XLA does not compile of a TensorFlow function, and what is left without.

XLA refuses a function for any op in it that it has no form of, also for one
whose result nobody uses. The latter are left out here; the former are named,
with the Lingvo layers in which they are, before anything is compiled.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from adaptors import lingvo_runtime
from pax_compat import errors

_DEVICE = 'XLA_CPU_JIT'

# What a function is written down with: XLA compiles it as a whole.
_STRUCTURE = frozenset(
  'Placeholder NoOp _Arg _Retval PartitionedCall StatefulPartitionedCall If'
  ' StatelessIf While StatelessWhile Case StatelessCase'.split()
)

# Ops whose results have a shape that depends on values, and ops that XLA
# computes wrongly, without an error, of what has such a shape.
_DYNAMIC = frozenset('Where Unique UniqueV2 DynamicPartition'.split())
_WRONG = frozenset('Unique UniqueV2 Cumsum Cumprod'.split())

_PYTHON = frozenset({'EagerPyFunc', 'PyFunc', 'PyFuncStateless'})


class Refused(NamedTuple):
  """An op that XLA does not compile.

  Attributes:
    op: its type, such as `StringJoin`.
    scope: its name scope, which is that of a Lingvo layer; empty for none.
    advice: what to do about it.
  """

  op: str
  scope: str
  advice: str


def compilable(function: Callable) -> Callable:
  """Returns a function that computes the same, for `jax2tf.call_tf`.

  Args:
    function: of tensors and nests of them; what it returns, too.

  Returns:
    A function that raises a UserError, when it is traced, if XLA refuses an op
    that its results need, and that has no ops that no result needs and that XLA
    refuses.
  """

  def call(*args):
    tf = lingvo_runtime.module('tensorflow')
    traced = tf.function(function, autograph=False).get_concrete_function(*args)
    refused = uncompilable_ops(traced)
    if refused:
      raise refusal(refused)
    return _without_unused(traced)(*args)

  return call


def uncompilable_ops(concrete_function: Any) -> list[Refused]:
  """Returns the ops that XLA refuses among those that the results need.

  Args:
    concrete_function: a `tf.ConcreteFunction`. That shapes depend on values is
      found where a result of the function has such a shape; XLA may refuse it
      in other places, too.
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
  found += _wrong_ones(concrete_function.graph)
  return list(dict.fromkeys(found))


def refusal(refused: Sequence[Refused]) -> errors.UserError:
  """Returns the error that says which ops cannot be bridged."""
  lines = [
    f'  {op} in {scope or "no name scope"}: {advice}'
    for op, scope, advice in refused
  ]
  return errors.UserError(
    'the task uses TensorFlow ops that XLA does not compile, so that it cannot'
    ' be bridged as it is; expected ops that it does:\n' + '\n'.join(lines)
  )


def _without_unused(concrete_function):
  """Returns a function without unused ops, if XLA would refuse one of them."""
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
  """Returns the nodes of a function by name, in their order."""
  return {node.name: node for node in function_def.node_def}


def _needed(function_def, nodes) -> set[str]:
  """Returns the names of the nodes that the results need."""
  open_names = [*function_def.ret.values(), *function_def.control_ret.values()]
  needed = set()
  while open_names:
    # Inputs are written `name`, `name:output:0`, or `^name` for order only.
    name = open_names.pop().lstrip('^').split(':')[0]
    if name in nodes and name not in needed:
      needed.add(name)
      open_names.extend(nodes[name].input)
  return needed


def _functions() -> Any:
  """Returns what knows the functions of this process by name."""
  return lingvo_runtime.module('tensorflow.python.eager.context').context()


def _refused(node, functions: Any, scope: str) -> Iterator[tuple[str, str]]:
  """Yields type and name scope of what XLA refuses: a node, or parts of it.

  Args:
    node: a `NodeDef`.
    functions: see `_functions`.
    scope: the name scope of the function that it is in.
  """
  own_scope = node.name.rpartition('/')[0]
  # Functions that are branches and loops have the name of their op in theirs.
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
    for part in functions.get_function_def(name).node_def:
      yield from _refused(part, functions, path)


def _is_compiled(node) -> bool:
  """Whether XLA has a form of a node, for the types that it has."""
  if node.op in _STRUCTURE:
    return True
  types = {name: _types(value) for name, value in node.attr.items()}
  return any(
    all(types.get(name, allowed) <= allowed for name, allowed in form.items())
    for form in _forms(node.op)
  )


def _types(value) -> set[int]:
  """Returns the types that an attribute of a node names."""
  return {value.type} if value.type else set(value.list.type)


@functools.cache
def _forms(op: str) -> list[dict[str, set]]:
  """Returns what XLA has of an op: for each form, the types it allows."""
  _register_forms()
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
def _register_forms() -> None:
  """Has TensorFlow register what XLA compiles, which it does at first use."""
  tf = lingvo_runtime.module('tensorflow')
  function = tf.function(lambda: tf.zeros([]), jit_compile=True)
  with tf.init_scope():
    function.experimental_get_compiler_ir()(stage='hlo')


def _dynamic_shapes(outputs) -> list[Refused]:
  """Returns the ops from which results get shapes that depend on values."""
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
        'the shape of its result depends on values, and a result of the task'
        ' has that shape; give it one that is known beforehand: pad it, and'
        ' mask with weights or paddings'
      )
      found.append(Refused(op.type, scope, advice))
  return found


def _wrong_ones(graph) -> list[Refused]:
  """Returns ops that XLA computes wrongly of shapes that depend on values."""
  found, dynamic = [], set()
  for op in graph.get_operations():
    unknown = [x for x in op.outputs if not x.shape.is_fully_defined()]
    is_of_dynamic = any(x.ref() in dynamic for x in op.inputs)
    if is_of_dynamic and (op.type in _WRONG or _counts_from_the_end(op)):
      advice = (
        'XLA computes this wrongly of an array whose shape depends on values,'
        ' such as one of tf.where, tf.boolean_mask or tf.unique; keep all rows,'
        ' and mask with weights or paddings'
      )
      found.append(Refused(op.type, op.name.rpartition('/')[0], advice))
    if op.type in _DYNAMIC or is_of_dynamic:
      dynamic.update(x.ref() for x in unknown)
  return found


def _counts_from_the_end(op) -> bool:
  """Whether an op takes a slice whose place is given from the end."""
  if op.type != 'StridedSlice':
    return False
  tensor_util = lingvo_runtime.module('tensorflow.python.framework.tensor_util')
  for limit, mask in zip(
    op.inputs[1:3],
    (op.get_attr('begin_mask'), op.get_attr('end_mask')),
    strict=True,
  ):
    places = tensor_util.constant_value(limit)
    is_masked = [
      mask >> i & 1 for i in range(0 if places is None else len(places))
    ]
    if places is None or any(
      place < 0 and not masked
      for place, masked in zip(places, is_masked, strict=True)
    ):
      return True
  return False


def _advice(op: str) -> str:
  """Returns what to do about an op that XLA has no form of."""
  if op in _PYTHON:
    return (
      'Python code cannot run while the compiled model does; write it in'
      ' TensorFlow ops, or move it to the input generator'
    )
  if op.startswith('Random'):
    return (
      'random numbers of this distribution have no form that is compiled; draw'
      ' them from uniform or normal ones'
    )
  if _is_lingvos(op):
    return (
      'a native op of Lingvo, for the CPU only; move it to the input generator,'
      ' or leave the decoding that it belongs to out of training'
    )
  if _has_strings(op):
    return (
      'there are no strings on an accelerator; move this to the input'
      ' generator, and give the model ids'
    )
  return (
    'XLA has no form of this op, or none for the types that it has here; write'
    ' it with others, or move it to the input generator'
  )


def _has_strings(op: str) -> bool:
  """Whether an op takes or gives strings."""
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
