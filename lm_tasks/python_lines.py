"""Lines of Python's standard library: code, or text about it.

Text is a comment or a line of a docstring.

Every Python has them, so a text classifier trains without a download. The lines
differ a little between Python versions.

Legend: B lines in a batch, T bytes of a line.
"""

import ast
import collections
import functools
import importlib.util
import io
import pathlib
import tokenize
from collections.abc import Iterator

import numpy as np

from pax_compat import errors
from pax_compat.config import REQUIRED
from pax_compat.inputs import indexed_input
from pax_compat.nested_map import NestedMap

CLASSES = ('code', 'text')
VOCAB_SIZE = 256
SPLITS = ('train', 'test')
_MODULES = (
  'argparse collections configparser datetime difflib doctest'
  ' email.message enum fractions ftplib functools heapq http.client'
  ' http.server logging mailbox optparse pathlib pdb platform profile'
  ' random shutil smtplib socket statistics subprocess tarfile tempfile'
  ' threading typing urllib.request uuid zipfile'
).split()
# One line of as many is held out.
_HELD_OUT = 10
_MIN_BYTES = 12


class PythonLinesInput(indexed_input.IndexedInput):
  """Lines as bytes, each with its class; both classes are equally frequent.

  Indentation, and the `#` of comments, are removed. A batch has `ids` [B, T],
  the bytes, padded with 0, and `labels` [B], indices of `CLASSES`. To train on
  your own texts, override `lines`.

  Attributes:
    split: `train` or `test`.
    seq_len: T; longer lines lose their end.
  """

  split: str = REQUIRED
  seq_len: int = REQUIRED

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.split in SPLITS,
      f'split of {self.name} is {self.split!r}; expected one of'
      f' {", ".join(SPLITS)}',
    )

  @functools.cached_property
  def lines(self) -> list[tuple[str, int]]:
    """The lines, and the index of the class of each."""
    return balanced_lines(self.split)

  @property
  def num_examples(self) -> int:
    """The number of lines."""
    return len(self.lines)

  def examples(self, indices: np.ndarray) -> NestedMap:
    """Returns some of the lines."""
    chosen, labels = zip(*(self.lines[i] for i in indices), strict=True)
    return NestedMap(
      ids=to_ids(chosen, self.seq_len), labels=np.array(labels, np.int32)
    )

  def tokenizers(self) -> dict[str, str]:
    return {'': 'bytes'}


def to_ids(lines: tuple[str, ...], seq_len: int) -> np.ndarray:
  """Returns the bytes of lines, [B, seq_len] int32, padded with 0.

  >>> to_ids(('ab', 'pass'), seq_len=3).tolist()
  [[97, 98, 0], [112, 97, 115]]
  """
  ids = np.zeros([len(lines), seq_len], np.int32)
  for row, line in zip(ids, lines, strict=True):
    tokens = line.encode()[:seq_len]
    row[: len(tokens)] = list(tokens)
  return ids


@functools.cache
def balanced_lines(split: str) -> list[tuple[str, int]]:
  """Returns the lines of a split, with their classes. No line is twice.

  Raises:
    UserError: this Python comes without the source of its library.
  """
  by_class: dict[str, dict[str, None]] = {name: {} for name in CLASSES}
  for source in filter(None, map(_source, _MODULES)):
    for name, line in classified(source):
      by_class[name][line] = None
  seen = collections.Counter(
    line for found in by_class.values() for line in found
  )
  by_class = {
    name: [line for line in found if seen[line] == 1]
    for name, found in by_class.items()
  }
  count = min(map(len, by_class.values()))
  if not count:
    raise errors.UserError(
      'this Python comes without the source of its library, which is the text'
      ' of this experiment'
    )
  draw = np.random.default_rng(0)
  found = []
  for label, name in enumerate(CLASSES):
    lines = by_class[name]
    order = draw.permutation(len(lines))[:count]
    held_out = count // _HELD_OUT
    chosen = order[:held_out] if split == 'test' else order[held_out:]
    found += [(lines[i], label) for i in chosen]
  return found


def classified(source: str) -> Iterator[tuple[str, str]]:
  """Yields the class and the text of lines of a Python module.

  Short lines are left out, and lines of code with a comment.

  >>> list(classified('# A comment of it.\\nnumber = len(names)'))
  [('text', 'A comment of it.'), ('code', 'number = len(names)')]

  Args:
    source: text of the module.
  """
  documented = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(
      node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) and (text := ast.get_docstring(node)):
      documented.add(node.body[0].lineno)
      yield from _long('text', text.splitlines())
  lines = source.splitlines()
  seen = set()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    row, column = token.start
    if row in seen or not token.string.strip():
      continue
    before = lines[row - 1][:column].strip()
    seen.update(range(row, token.end[0] + 1))
    if token.type == tokenize.COMMENT and not before:
      yield from _long('text', [token.string.lstrip('#')])
    elif row not in documented and '#' not in lines[row - 1]:
      yield from _long('code', [lines[row - 1]])


def _long(name: str, lines: list[str]) -> Iterator[tuple[str, str]]:
  for line in map(str.strip, lines):
    if len(line) >= _MIN_BYTES and any(map(str.isalpha, line)):
      yield name, line


def _source(module: str) -> str | None:
  """Returns the source of a module; None if this Python does not have it."""
  try:
    found = importlib.util.find_spec(module)
  except ModuleNotFoundError:
    return None
  if found is None or not (found.origin or '').endswith('.py'):
    return None
  path = pathlib.Path(found.origin)
  return path.read_text('utf-8') if path.is_file() else None
