"""Per-example outputs of a model, as JSON lines."""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from pax_compat import errors
from pax_compat.runs import files

# Lines that are kept, to be shown, and how much of each.
_SHOWN, _MAX_SHOWN_CHARACTERS = 4, 1000


class ExampleWriter:
  """Writes one line per example, without buffering examples.

  Attributes:
    count: the number of lines.
    first: the first few lines, the start of each.
  """

  def __init__(self, file: TextIO):
    self._file = file
    self.count = 0
    self.first: list[str] = []

  def write(self, **fields: Any):
    """Writes one line.

    Args:
      **fields: in order: numbers, strings, arrays (NumPy or JAX), None, and
        lists, tuples and dicts of these. Bytes are decoded as UTF-8; numbers
        that JSON does not have are written as "nan", "inf" and "-inf".

    Raises:
      UserError: a field has another type.
    """
    line = json.dumps(_plain(fields), allow_nan=False)
    self._file.write(f'{line}\n')
    if self.count < _SHOWN:
      self.first.append(line[:_MAX_SHOWN_CHARACTERS])
    self.count += 1


@contextlib.contextmanager
def example_writer(path: pathlib.Path) -> Iterator[ExampleWriter]:
  """Yields a writer to a file that is replaced atomically at the end.

  Args:
    path: the file; its folder is created. If an error ends the context, an
      earlier file stays as it is. Two processes may write the same file: a run
      and a job that decode the same checkpoint.
  """
  with files.replacing(path) as half, open(half, 'w', encoding='utf-8') as f:
    yield ExampleWriter(f)


def _plain(value: Any) -> Any:
  """Returns a value as JSON types."""
  if isinstance(value, dict):
    return {str(k): _plain(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(v) for v in value]
  if value is None or isinstance(value, str | bool | int):
    return value
  if isinstance(value, bytes):
    return value.decode('utf-8', errors='replace')
  array = np.asarray(value)
  if array.ndim:
    return [_plain(v) for v in array]
  item = array.item()
  if isinstance(item, int | bool | str):
    return item
  if isinstance(item, bytes):
    return _plain(item)
  if isinstance(item, float):
    return item if np.isfinite(item) else str(item)
  raise errors.UserError(
    f'the per-example outputs contain a {type(value).__name__}, which JSON'
    ' cannot represent; expected numbers, strings, arrays, and lists and dicts'
    ' of these'
  )
