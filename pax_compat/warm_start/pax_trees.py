"""Reads the text of a JAX tree structure, as flax checkpoints of Pax have it.

>>> leaf_names(
...   "PyTreeDef(CustomNode(TrainState[()], [*, {'params': {'w': *}},"
...   " [(CustomNode(NestedMap[('count', 'm')], [*, {'w': *}]),)], ()]))"
... )
['step', 'mdl_vars/params/w', 'opt_states/0/0/count', 'opt_states/0/0/m/w']
"""

import ast
import re
from collections.abc import Iterator, Sequence

import optax

# The fields of Pax's state, in the order of its leaves.
_FIELDS = ('step', 'mdl_vars', 'opt_states', 'extra_state')
# Fields of named tuples of Pax; those of Optax are in Optax.
_NAMED = {
  'ShardedAdafactorState': ('count', 'm', 'm_scale', 'vr', 'vc', 'v'),
  'ShampooState': ('count', 'stats'),
  'ShardedShampooStats': ('global_stats', 'local_stats'),
  'ParameterStats': (
    'diagonal_statistics',
    'statistics',
    'preconditioners',
    'diagonal_momentum',
    'momentum',
    'training_metrics',
  ),
}
# Fields that are arrays, or have some, of dataclasses.
_DATACLASSES = {
  'TrainState': _FIELDS,
  'QuantizedValue': ('quantized', 'diagonal', 'bucket_size'),
  'GlobalShardedParameterStats': (
    'statistics',
    'preconditioners',
    'exponents',
  ),
  'LocalShardedParameterStats': (
    'diagonal_statistics',
    'diagonal_momentum',
    'momentum',
    'training_metrics',
  ),
  'TrainingMetrics': (
    'inverse_pth_root_errors',
    'inverse_pth_root_iters',
    'final_error_ratio',
    'lobpcg_diagnostics',
    'inverse_pth_root_diagnostics',
    'conditioned_inverse_pth_root_diagnostics',
  ),
}
_TOKEN = re.compile(
  r"\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
  r'|(?P<word>[\w.]+)|(?P<sign>[*{}\[\](),:<>]))'
)


def leaf_names(text: str) -> list[str]:
  """Returns the names of the leaves in order, with slashes between keys.

  Args:
    text: `str` of the structure of Pax's `TrainState`.

  Raises:
    ValueError: it is not such a text.
  """
  reader = _Reader(text)
  reader.take('PyTreeDef')
  reader.take('(')
  names = [name.removeprefix('/') for name in reader.node('')]
  reader.take(')')
  return names


class _Reader:
  """A recursive descent over the tokens; it never evaluates them."""

  def __init__(self, text: str):
    self._text, self._at = text, 0

  def _peek(self) -> str:
    match = _TOKEN.match(self._text, self._at)
    if match is None:
      part = self._text[self._at : self._at + 20]
      raise ValueError(f'unexpected {part!r} at character {self._at}')
    return match[0].strip()

  def take(self, wanted: str | None = None) -> str:
    """Returns the next token; it must be `wanted`, if given."""
    token = self._peek()
    if wanted is not None and token != wanted:
      raise ValueError(
        f'expected {wanted!r} at character {self._at}, found {token!r}'
      )
    self._at = _TOKEN.match(self._text, self._at).end()
    return token

  def node(self, path: str) -> Iterator[str]:
    """Yields the paths of the leaves of the node that begins here."""
    token = self.take()
    if token == '*':
      yield path
    elif token == '{':
      yield from self._mapping(path)
    elif token in ('(', '['):
      yield from self._sequence(path, ')' if token == '(' else ']')
    elif token == 'CustomNode':
      yield from self._custom(path)
    elif token != 'None':
      raise ValueError(f'unexpected {token!r} before character {self._at}')

  def _mapping(self, path: str) -> Iterator[str]:
    while self._peek() != '}':
      key = ast.literal_eval(self.take())
      self.take(':')
      yield from self.node(f'{path}/{key}')
      self._comma()
    self.take('}')

  def _sequence(self, path: str, end: str, keys=None) -> Iterator[str]:
    index = 0
    while self._peek() != end:
      key = index if keys is None else keys[index]
      yield from self.node(f'{path}/{key}')
      self._comma()
      index += 1
    self.take(end)

  def _custom(self, path: str) -> Iterator[str]:
    """Reads `(Name[keys], [children])`, after `CustomNode`."""
    self.take('(')
    name = self.take()
    self.take('[')
    keys = self._keys(name)
    self.take(',')
    self.take('[')
    yield from self._sequence(path, ']', keys)
    self.take(')')

  def _keys(self, name: str) -> Sequence[str] | None:
    """Returns the keys of a NestedMap or named tuple; None for other nodes."""
    start = self._at
    depth = 1
    while depth:
      token = self.take()
      depth += {'[': 1, ']': -1}.get(token, 0)
    inside = self._text[start : self._at - 1].strip()
    if name in _DATACLASSES:
      return _DATACLASSES[name]
    if not inside.startswith('('):
      return _NAMED.get(inside) or _fields_in_optax(inside)
    keys = ast.literal_eval(inside)
    return [str(key) for key in keys] or None

  def _comma(self):
    if self._peek() == ',':
      self.take(',')


def _fields_in_optax(name: str) -> tuple[str, ...] | None:
  """Returns the fields of a state of Optax; None if not in Optax."""
  cls = getattr(optax, name, None) if name.isidentifier() else None
  fields = getattr(cls, '_fields', None)
  return fields if isinstance(fields, tuple) and fields else None
