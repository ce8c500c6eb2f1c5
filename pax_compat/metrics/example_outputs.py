"""What a model says of single examples, as JSON lines."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from pax_compat import errors


class ExampleWriter:
  """Writes a line for each example as it comes; none is kept."""

  def __init__(self, file: TextIO):
    self._file = file
    self.count = 0

  def write(self, **fields: Any):
    """Writes one line.

    Args:
      **fields: its fields in order: numbers, texts, arrays (numpy's or JAX's),
        None, and lists, tuples and dicts of them. Bytes become text, numbers
        that JSON has not become "nan", "inf" and "-inf".

    Raises:
      UserError: a field is something else.
    """
    self._file.write(json.dumps(_plain(fields), allow_nan=False) + '\n')
    self.count += 1


@contextlib.contextmanager
def example_writer(path: pathlib.Path) -> Iterator[ExampleWriter]:
  """Yields a writer of a file that is there when, and only when, it is whole.

  Args:
    path: the file; its folder is made. Old content is lost at the end.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  half = path.with_name(f'.{path.name}.half')
  try:
    with open(half, 'w', encoding='utf-8') as f:
      yield ExampleWriter(f)
    os.replace(half, path)
  finally:
    half.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
  """Returns a value as JSON has it."""
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
    f'what is said of an example holds a {type(value).__name__}, which JSON'
    ' has not; expected numbers, texts, arrays, and lists and dicts of them'
  )
