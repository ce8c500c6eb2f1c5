"""What a compiled program reads from memory, and writes to it."""

from collections.abc import Mapping

from pax_compat.tools.pods import hlo_text
from pax_compat.tools.pods.hlo_text import Operation

# They move nothing, or another operation counts what they move.
_FREE = frozenset(
  {
    'after-all',
    'bitcast',
    'call',
    'conditional',
    'constant',
    'get-tuple-element',
    'iota',
    'parameter',
    'partition-id',
    'replica-id',
    'tuple',
    'while',
  }
)
# The vector memory of a TPU core.
_ON_CHIP = 'S(1)'


def of(program: hlo_text.Program) -> int:
  """Returns the bytes that each device reads and writes in a step.

  Each operation reads its operands and writes its result once. Of arrays that
  an operation takes a slice of, or updates in place, the slice counts.

  Args:
    program: the compiled program.
  """
  total = 0
  for computation, operation, times in program.executed():
    kind = operation.kind
    if kind not in _FREE and not kind.endswith('-done'):
      total += times * _bytes(program, computation, operation)
  return total


def _bytes(
  program: hlo_text.Program,
  computation: Mapping[str, Operation],
  operation: Operation,
) -> int:
  operands = [computation.get(name) for name in operation.operands]
  if operation.kind == 'fusion':
    called = program.called(operation)
    if called:
      return _of_fusion(program.computations[called[0]], operation, operands)
  if operation.kind in ('dynamic-slice', 'gather', 'slice', 'slice-start'):
    return 2 * _counted(operation)
  if operation.kind == 'dynamic-update-slice':
    return 2 * _counted(operands[1]) if operands[1] else 0
  if operation.kind.endswith('-start'):  # A pair of source and target.
    return _counted(operation)
  return _counted(operation) + sum(_counted(x) for x in operands if x)


def _of_fusion(inner: Mapping[str, Operation], operation, operands) -> int:
  users: dict[str, list[Operation]] = {}
  for one in inner.values():
    for name in one.operands:
      users.setdefault(name, []).append(one)
  total, in_place = 0, 0
  for one in inner.values():
    if one.kind != 'parameter':
      continue
    place = int(one.operands[0])
    given = operands[place] if place < len(operands) else None
    used_by = users.get(one.name, [])
    if used_by and all(_uses(u, 'dynamic-slice', one) for u in used_by):
      total += sum(u.num_bytes for u in used_by)
    elif used_by and all(
      _uses(u, 'dynamic-update-slice', one) for u in used_by
    ):
      updates = [inner.get(u.operands[1]) for u in used_by]
      total += 2 * sum(u.num_bytes for u in updates if u)
      in_place += _counted(given) if given else 0
    elif given:
      total += _counted(given)
  return total + max(_counted(operation) - in_place, 0)


def _uses(operation: Operation, kind: str, array: Operation) -> bool:
  """Returns whether an operation takes or updates a slice of an array."""
  return operation.kind == kind and operation.operands[0] == array.name


def _counted(operation: Operation) -> int:
  return hlo_text.bytes_of(operation.result, but_space=_ON_CHIP)
