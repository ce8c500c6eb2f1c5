"""Reads the text of a compiled XLA program (HLO), with its loops' lengths."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

_ARRAY = re.compile(r'\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\](\{[^}]*\})?')
_BITS = re.compile(r'\d+')
_HEADER = re.compile(r'^(?:ENTRY )?%?([^\s(]+) .*\{$')
_CALLED = re.compile(r'\b(?:to_apply|calls|body)=%?([^\s,}]+)')
_CONDITION = re.compile(r'\bcondition=%?([^\s,}]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TWO = re.compile(r'(?:true|false)_computation=%?([^\s,}]+)')
# Every fifth element of a list has its number as a comment.
_COMMENT = re.compile(r'/\*.*?\*/')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Operation:
  """An operation of a computation.

  Attributes:
    name: its name.
    kind: the opcode, such as `all-gather`.
    result: the type of its result.
    operands: the names of its operands; a literal of a constant.
    attributes: the rest of its line.
    is_root: whether its result is that of the computation.
  """

  name: str
  kind: str
  result: str
  operands: tuple[str, ...]
  attributes: str
  is_root: bool

  @property
  def num_bytes(self) -> int:
    """Bytes of the result."""
    return bytes_of(self.result)


Computation = Mapping[str, Operation]


def bytes_of(text: str, *, but_space: str | None = None) -> int:
  """Returns the bytes of the arrays of a type.

  >>> bytes_of('(f32[2,3]{1,0}, pred[4])')
  28

  Args:
    text: the type.
    but_space: a memory space, such as `S(1)`, whose arrays do not count.
  """
  total = 0
  for dtype, shape, layout in _ARRAY.findall(text):
    if but_space is None or but_space not in layout:
      total += -(-math.prod(dims_of(shape)) * _bits(dtype) // 8)
  return total


def dims_of(shape: str) -> list[int]:
  """Returns the numbers of `2,3`."""
  return [int(n) for n in shape.split(',') if n]


def _bits(dtype: str) -> int:
  if dtype == 'token':
    return 0
  found = _BITS.search(dtype)
  return 8 if found is None else int(found[0])  # pred has no number.


class Program:
  """A compiled program.

  Attributes:
    computations: the operations of each computation, by name.
    entry: the name of the first one.
  """

  def __init__(self, text: str):
    """Reads the text of a program, as `jax.stages.Compiled.as_text` returns."""
    self.computations: dict[str, dict[str, Operation]] = {}
    self.entry = ''
    operations: dict[str, Operation] | None = None
    for line in _COMMENT.sub('', text).splitlines():
      header = _HEADER.match(line)
      if header and ' = ' not in line.partition('(')[0]:
        operations = self.computations[header[1]] = {}
        if line.startswith('ENTRY '):
          self.entry = header[1]
      elif line.rstrip() == '}':  # A Pallas kernel's attributes have lines.
        operations = None
      elif operations is not None:
        operation = _operation(line)
        if operation is not None:
          operations[operation.name] = operation

  def executed(self) -> Iterator[tuple[Computation, Operation, int]]:
    """Yields each operation that runs, with its computation and how often.

    Operations within a fusion are not yielded. Of a condition's branches, each
    counts once.
    """
    yield from self._executed(self.entry, 1)

  def _executed(self, name, times):
    computation = self.computations[name]
    for operation in computation.values():
      yield computation, operation, times
      if operation.kind == 'while':
        often = times * self._trips(operation)
      elif operation.kind in ('call', 'conditional', 'async-start'):
        often = times
      else:
        continue
      for called in self.called(operation):
        yield from self._executed(called, often)

  def called(self, operation: Operation) -> list[str]:
    """Returns the names of the computations that an operation calls."""
    names = _CALLED.findall(operation.attributes)
    names += _TWO.findall(operation.attributes)
    for branches in _BRANCHES.findall(operation.attributes):
      names += [one.strip().lstrip('%') for one in branches.split(',')]
    return [name for name in names if name in self.computations]

  def _trips(self, loop: Operation) -> int:
    """Returns how often a loop runs; 1 if that is not a constant."""
    known = _TRIPS.search(loop.attributes)
    if known:
      return int(known[1])
    found = _CONDITION.search(loop.attributes)
    condition = self.computations.get(found[1], {}) if found else {}
    for operation in condition.values():
      if operation.is_root and 'direction=LT' in operation.attributes:
        bounds = [condition.get(name) for name in operation.operands]
        for bound in bounds:
          if bound is not None and bound.kind == 'constant':
            return int(bound.operands[0])
    return 1


def _operation(line: str) -> Operation | None:
  head, equals, rest = line.strip().partition(' = ')
  if not equals:
    return None
  result, rest = _result(rest)
  kind, _, rest = rest.partition('(')
  operands, attributes = _until_closed(rest)
  return Operation(
    name=head.removeprefix('ROOT ').lstrip('%'),
    kind=kind,
    result=result,
    operands=tuple(_operands(operands)),
    attributes=attributes,
    is_root=head.startswith('ROOT '),
  )


def _result(text: str) -> tuple[str, str]:
  """Returns the type that a text begins with, and the rest."""
  if not text.startswith('('):
    result, _, rest = text.partition(' ')
    return result, rest
  inner, rest = _until_closed(text[1:])
  return f'({inner})', rest.lstrip()


def _until_closed(text: str) -> tuple[str, str]:
  """Returns the text before the bracket that closes an open one, and after."""
  depth = 1
  for place, letter in enumerate(text):
    depth += (letter == '(') - (letter == ')')
    if not depth:
      return text[:place], text[place + 1 :]
  return text, ''


def _operands(text: str) -> Sequence[str]:
  """Returns the last words of a list, which are the names."""
  depth, start, found = 0, 0, []
  for place, letter in enumerate(text + ','):
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      word = text[start:place].split()
      found += [word[-1].lstrip('%')] if word else []
      start = place + 1
  return found
