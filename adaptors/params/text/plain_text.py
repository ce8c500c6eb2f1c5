"""Parses `trainer_params.txt`, the output of `Params.ToText`, into nodes.

    task.lm.emb.cls : type/lingvo.core.layers/EmbeddingLayer
    task.train.learning_rate : 0.5
    task.layers[0].dims : 4

The text has less information than the proto text:

* An empty list, tuple or Params is omitted. A missing field whose default is a
  list is read as an empty list.
* A list of ints is written like an array. It is read as an array if it has more
  than one line, is padded or abbreviated, or is a `device_mesh`.
* A dtype in a list is written like a str, and read as one.
"""

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from adaptors.params.text import nodes
from pax_compat import errors

_PAIR = re.compile(r'([a-z_](?:[^\n:\[]|\[(?:\'[^\n]*?\'|[^\]\n]*)\])*) : ')
_STRING = re.compile(r"""(['"])((?:\\.|(?!\1)[^\\])*)\1""", re.S)
_STEP = re.compile(
  r'\.?(?P<field>[a-z_][a-z0-9_]*)|\[(?P<index>\d+)\]'
  r"|\['(?P<key>.*?)'\](?=$|[.\[])|\[(?P<name>[^\]]*)\]"
)
_OPENING, _CLOSING = '[({', '])}'
_ARRAYS = ('device_mesh',)
_WORDS = {'NoneType': None, 'True': True, 'False': False}


def parse(text: str, source: str) -> nodes.Fields:
  """Parses a text of `path : value` lines.

  Args:
    text: the contents of the file.
    source: its name, for messages.

  Raises:
    UserError: the text is not valid.
  """
  root = _Branch()
  for line, path, value in _pairs(text, source):
    try:
      root.add(_steps(path), _leaf(value, path))
    except _NotToTextError as error:
      raise errors.UserError(f'{source}:{line}: {path}: {error}') from error
  return _fields(root)


class _NotToTextError(Exception):
  """The text is not an output of `ToText`; the message says why."""


@dataclasses.dataclass
class _Branch:
  """An inner node of the tree of paths: children by step, (kind, name)."""

  children: dict[tuple[str, str], Any] = dataclasses.field(default_factory=dict)

  def add(self, steps: list[tuple[str, str]], leaf: Any):
    """Adds a leaf at the end of a path."""
    branch = self
    for step in steps[:-1]:
      branch = branch.children.setdefault(step, _Branch())
      if not isinstance(branch, _Branch):
        raise _NotToTextError('it has both a value and fields')
    if steps[-1] in branch.children:
      raise _NotToTextError('it is there twice')
    branch.children[steps[-1]] = leaf


def _pairs(text: str, source: str) -> Iterator[tuple[int, str, str]]:
  """Yields (line number, path, string of the value)."""
  position = 0
  while position < len(text):
    end = text.find('\n', position)
    end = len(text) if end < 0 else end
    line = text[position:end]
    if not line.strip() or line.lstrip().startswith('#'):
      position = end + 1
      continue
    number = text.count('\n', 0, position) + 1
    pair = _PAIR.match(text, position)
    if pair is None:
      raise errors.UserError(
        f'{source}:{number}: {line!r} is not of the form `path : value`'
      )
    end = _end_of_value(text, pair.end())
    if end is None:
      raise errors.UserError(
        f'{source}:{number}: the value of {pair.group(1)} does not end'
      )
    yield number, pair.group(1), text[pair.end() : end].rstrip()
    position = end + 1


def _end_of_value(text: str, start: int) -> int | None:
  """Returns the end of a value: a line end outside quotes and brackets."""
  depth, position = 0, start
  while position < len(text):
    char = text[position]
    if char in '\'"' and (depth or position == start):
      string = _STRING.match(text, position)
      if string is None:
        return None
      position = string.end()
      continue
    if char == '\n' and not depth:
      return position
    if text[start] in _OPENING:
      depth += (char in _OPENING) - (char in _CLOSING)
    position += 1
  return None if depth else position


def _steps(path: str) -> list[tuple[str, str]]:
  """Splits `a.b[0].c['k']` into steps, (kind, name)."""
  steps, position = [], 0
  while position < len(path):
    step = _STEP.match(path, position)
    if step is None or not step.group():
      raise _NotToTextError('this is not the path of a field')
    steps.append((step.lastgroup, step.group(step.lastgroup)))
    position = step.end()
  return steps


def _fields(branch: _Branch) -> nodes.Fields:
  items = {name: _node(child) for (_, name), child in branch.children.items()}
  for name, value in items.items():
    shape = items.get(f'{name}_shape')
    if isinstance(value, nodes.ArrayText) and isinstance(shape, (list, tuple)):
      items[name] = dataclasses.replace(value, shape=tuple(shape))
  return nodes.Fields(items, lacks_empty=True)


def _node(child: Any) -> Any:
  """Returns the node of a branch; a leaf is returned unchanged."""
  if not isinstance(child, _Branch):
    return child
  kinds = {kind for kind, _ in child.children}
  if kinds == {'field'}:
    return _fields(child)
  values = {name: _node(c) for (_, name), c in child.children.items()}
  if kinds == {'key'}:
    return values
  if kinds == {'name'}:
    return nodes.Items(tuple(values.items()))
  if kinds == {'index'} and set(values) == set(map(str, range(len(values)))):
    return nodes.Items(tuple(values[str(i)] for i in range(len(values))))
  return nodes.Unreadable(
    'its children are neither fields, nor keys, nor all elements of a list'
  )


def _leaf(text: str, path: str) -> Any:
  """Returns the node of a value."""
  if text in _WORDS:
    return _WORDS[text]
  if text[:1] in ('"', "'"):
    return _literal(text)
  if text[:1] and text[:1] in _OPENING:
    return _container(text, path)
  kind, _, rest = text.partition('/')
  if kind == 'type' and rest:
    return nodes.TypeName.parse(rest)
  if kind == 'proto' and rest.count('/') >= 2:
    module, name, content = rest.split('/', 2)
    return nodes.Message(nodes.TypeName(module, name), content)
  for number in (int, float):
    try:
      return number(text)
    except ValueError:
      continue
  return nodes.Bare(text)


def _literal(text: str) -> Any:
  # Lingvo does not escape line ends in quotes.
  text = _STRING.sub(lambda match: match.group().replace('\n', '\\n'), text)
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, TypeError) as error:
    raise _NotToTextError(f'{text!r} is not a literal') from error


def _container(text: str, path: str) -> Any:
  """Returns the node of a list, a tuple, a dict or an array."""
  is_array = text.startswith('[') and (
    '...' in _STRING.sub('', text)
    or path.rpartition('.')[2] in _ARRAYS
    or '\n' in _STRING.sub('', text)
  )
  if is_array:
    return nodes.ArrayText(text)
  try:
    value = _literal(text)
  except _NotToTextError:
    return nodes.Unreadable(
      f'the text has {text[:80]!r}, which is not a literal'
    )
  numbers = not _STRING.search(text) and text.startswith('[')
  if numbers and repr(value) != text:
    return nodes.ArrayText(text)
  return _of_literal(value)


def _of_literal(value: Any) -> Any:
  """Returns the node of a literal; types in it are written as strings."""
  if isinstance(value, (list, tuple)):
    return type(value)(map(_of_literal, value))
  if isinstance(value, dict):
    items = {k: _of_literal(v) for k, v in value.items()}
    return nodes.Fields(items) if 'cls' in items else items
  if value == 'NoneType':
    return None
  if isinstance(value, str) and value.startswith('type/'):
    return nodes.TypeName.parse(value.removeprefix('type/'))
  return value
