"""Values of context variables that hold within a block."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar('T')


@contextlib.contextmanager
def set_within(variable: contextvars.ContextVar[T], value: T) -> Iterator[T]:
  """Sets a variable, and restores its value at the end of the block.

  >>> size = contextvars.ContextVar('size', default=1)
  >>> with set_within(size, 2):
  ...   size.get()
  2
  >>> size.get()
  1
  """
  token = variable.set(value)
  try:
    yield value
  finally:
    variable.reset(token)
