"""Trees of Lingvo Params, without importing Lingvo."""

from collections.abc import Collection, Iterator
from typing import Any


def is_params(value: Any) -> bool:
  """Whether a value is Params."""
  return hasattr(value, 'IterParams')


def get(params: Any, name: str) -> Any:
  """Returns the value of a field of Params; None if it does not exist."""
  return params.Get(name) if name in params else None


def has_base(cls: type, path: str) -> bool:
  """Returns whether a class is, or inherits from, the class of a dotted path.

  Args:
    cls: the class.
    path: such as `lingvo.core.tokenizers.AsciiTokenizer`. Nothing is imported.
  """
  return any(f'{c.__module__}.{c.__qualname__}' == path for c in cls.__mro__)


def all_params(value: Any, *, without: Collection[str] = ()) -> Iterator[Any]:
  """Yields the mutable Params in a tree, parents first.

  Immutable Params, such as those of initializers, contain no others.

  Args:
    value: Params, or a list or dict that may contain some.
    without: names of fields that are skipped.
  """
  if is_params(value):
    if not value.IsImmutable():
      yield value
      for name, child in list(value.IterParams()):
        if name not in without:
          yield from all_params(child, without=without)
  elif isinstance(value, dict):
    for child in value.values():
      yield from all_params(child, without=without)
  elif isinstance(value, (list, tuple)):
    for child in value:
      yield from all_params(child, without=without)
