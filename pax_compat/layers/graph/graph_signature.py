"""Signatures of a graph's nodes, their dependencies and their order."""

import dataclasses
import graphlib
import re
from collections.abc import Sequence
from typing import Any

from pax_compat import errors
from pax_compat.nested_map import NestedMap

_NAME = re.compile(r'[A-Za-z_]\w*')
_PATH = re.compile(rf'{_NAME.pattern}(\.{_NAME.pattern})*')
_TOKEN = re.compile(r'\s*([\[\](),=]|[^\s\[\](),=]+)\s*')

# A path, or a list or NestedMap of such inputs.
Input = Any


@dataclasses.dataclass(frozen=True)
class Signature:
  """The values that a node reads and writes.

  Attributes:
    inputs: one per argument: the name of a value, a path such as `batch.ids`
      into NestedMaps, or a list or NestedMap of these.
    outputs: names of values, or paths in NestedMaps that are created.
  """

  inputs: tuple[Input, ...]
  outputs: tuple[str, ...]

  @property
  def reads(self) -> tuple[str, ...]:
    """All paths in the inputs."""
    return tuple(path for item in self.inputs for path in _paths(item))


def parse_signature(text: str) -> Signature:
  """Parses a signature such as `a,b.ids->c` or `[a,b],(x=a,y=b)->c.d`.

  >>> parse_signature('a,b.ids->c')
  Signature(inputs=('a', 'b.ids'), outputs=('c',))

  Raises:
    UserError: the text has another syntax.
  """
  left, arrow, right = text.partition('->')
  outputs = tuple(name.strip() for name in right.split(','))
  try:
    if not arrow or not all(map(_PATH.fullmatch, outputs)):
      raise ValueError
    inputs = _Parser(left).inputs()
  except ValueError:
    raise errors.UserError(
      f'Graph: {text!r} is not a signature; expected names such as'
      " 'a,b.ids->c', where b.ids is a field of b"
    ) from None
  return Signature(inputs, outputs)


class _Parser:
  """Parses the inputs of a signature; raises ValueError on bad syntax."""

  def __init__(self, text: str):
    self._tokens = _TOKEN.findall(text)[::-1]

  def inputs(self) -> tuple[Input, ...]:
    return tuple(self._items('', self._item))

  def _items(self, end: str, read) -> list:
    """Returns comma-separated items, parsed by `read`, up to token `end`."""
    items = []
    while self._peek() != end:
      items.append(read())
      if self._peek() == ',' and self._take():
        continue
      if self._peek() != end:
        raise ValueError
    self._take()
    return items

  def _item(self) -> Input:
    token = self._take()
    if token == '[':
      return self._items(']', self._item)
    if token == '(':
      return NestedMap(self._items(')', self._pair))
    if not _PATH.fullmatch(token):
      raise ValueError
    return token

  def _pair(self) -> tuple[str, Input]:
    name, equals = self._take(), self._take()
    if not _NAME.fullmatch(name) or equals != '=':
      raise ValueError
    return name, self._item()

  def _peek(self) -> str:
    return self._tokens[-1] if self._tokens else ''

  def _take(self) -> str:
    return self._tokens.pop() if self._tokens else ''


def find_dependencies(
  signatures: Sequence[Signature],
  inputs: Sequence[str],
  outputs: Sequence[str],
  *,
  allow_unread_inputs: bool = False,
) -> list[set[int]]:
  """Returns for each node the indices of the nodes whose values it reads.

  Args:
    signatures: of the nodes.
    inputs: names of the graph's arguments.
    outputs: paths of the returned values.
    allow_unread_inputs: whether arguments may stay unused.

  Raises:
    UserError: a value is written twice (or both whole and by field), or read
      but never written, or an argument is never read.
  """
  writers = _writers(signatures, inputs)
  read = [path for signature in signatures for path in signature.reads]
  for path in (*outputs, *read):
    if not _writers_of(path, writers):
      raise errors.UserError(
        f'Graph: nothing writes {path!r}' + errors.did_you_mean(path, writers)
      )
  roots = {path.partition('.')[0] for path in (*outputs, *read)}
  unread = [name for name in inputs if name not in roots]
  if unread and not allow_unread_inputs:
    raise errors.UserError(
      f'Graph: nothing reads the input {", ".join(map(repr, unread))}'
    )
  return [
    {
      writer
      for path in signature.reads
      for writer in _writers_of(path, writers)
    }
    - {None}
    for signature in signatures
  ]


def order(
  signatures: Sequence[Signature], dependencies: Sequence[set[int]]
) -> tuple[int, ...]:
  """Returns the nodes' indices in topological order.

  Raises:
    UserError: the graph has a cycle.
  """
  try:
    sorter = graphlib.TopologicalSorter(dict(enumerate(dependencies)))
    return tuple(sorter.static_order())
  except graphlib.CycleError as e:
    names = [signatures[i].outputs[0] for i in e.args[1]]
    raise errors.UserError(
      'Graph: the values form a cycle: ' + ' -> '.join(names)
    ) from None


def _writers(
  signatures: Sequence[Signature], inputs: Sequence[str]
) -> dict[str, int | None]:
  """Returns {path: index of the node that writes it}, None for arguments."""
  writers: dict[str, int | None] = dict.fromkeys(inputs)
  for i, signature in enumerate(signatures):
    for path in signature.outputs:
      if path in writers:
        raise errors.UserError(
          f'Graph: {path!r} is written twice; expected a separate name for each'
          ' value'
        )
      for other in writers:
        if _is_within(path, other) or _is_within(other, path):
          raise errors.UserError(
            f'Graph: both {other!r} and {path!r} are written; expected either'
            ' a whole value or its fields'
          )
      writers[path] = i
  return writers


def _writers_of(path: str, writers: dict[str, int | None]) -> set[int | None]:
  """Returns the writers of a value, of its parents and of its fields."""
  return {
    writer
    for written, writer in writers.items()
    if path == written or _is_within(path, written) or _is_within(written, path)
  }


def _is_within(path: str, whole: str) -> bool:
  return path.startswith(whole + '.')


def _paths(item: Input) -> list[str]:
  if isinstance(item, str):
    return [item]
  items = item.values() if isinstance(item, dict) else item
  return [path for x in items for path in _paths(x)]
