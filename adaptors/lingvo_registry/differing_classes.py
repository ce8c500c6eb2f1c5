"""Classes of a fork of Lingvo that differ from those that are used here.

Modules that a checkout and the installed Lingvo both have come from the
installation, so a class that a fork changed is used without the changes. And
translations are of the classes of a release, found by their names: a class that
the installed Lingvo has changed is translated without the changes.
"""

import importlib.util
import inspect
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from adaptors.lingvo_registry import class_definitions, stock_classes
from adaptors.params import params_trees

_LINGVO = 'lingvo.'


def of(params: Any, checkout: pathlib.Path | None) -> list[str]:
  """Returns the classes that Params use and that a checkout defines otherwise.

  Comments, docstrings and the layout of the code do not count.

  Args:
    params: of a task or an input.
    checkout: the root; None for none.

  Returns:
    Full names of classes, base classes included, sorted.
  """
  if checkout is None:
    return []
  return _names(cls for cls in _used(params) if _differs(cls, checkout))


def of_installation(params: Any) -> list[str]:
  """Returns the classes that Params use and the installed Lingvo has changed.

  Args:
    params: of a task or an input.

  Returns:
    Full names of classes that differ from those of the release that is
    translated, base classes included, sorted.
  """
  return _names(filter(stock_classes.is_changed, _used(params)))


def described(params: Any, checkout: pathlib.Path | None) -> list[str]:
  """Returns sentences about the classes of `of` and of `of_installation`."""
  sentences = []
  if names := of(params, checkout):
    sentences.append(
      f'the installed Lingvo is used for these classes, and {checkout} defines'
      f' them otherwise: {", ".join(names)}'
    )
  if names := of_installation(params):
    sentences.append(
      f'translations are of Lingvo {stock_classes.release()}, and the installed'
      f' Lingvo defines these classes otherwise: {", ".join(names)}; python -m'
      ' adaptors.lingvo_parity compares what they compute'
    )
  return sentences


def _used(params: Any) -> set[type]:
  """Returns the classes of Lingvo that Params use, base classes included."""
  return {
    base
    for cls in _classes(params)
    for base in cls.__mro__
    if base.__module__.startswith(_LINGVO)
  }


def _names(classes: Iterable[type]) -> list[str]:
  return sorted(f'{cls.__module__}.{cls.__qualname__}' for cls in classes)


def _classes(params: Any) -> Iterator[type]:
  for node in params_trees.all_params(params):
    cls = params_trees.get(node, 'cls')
    if inspect.isclass(cls):
      yield cls


def _differs(cls: type, checkout: pathlib.Path) -> bool:
  """Whether the checkout has a class of the name with another definition."""
  spec = importlib.util.find_spec(cls.__module__)
  file = checkout.joinpath(*cls.__module__.split('.')).with_suffix('.py')
  if not (spec and spec.origin) or pathlib.Path(spec.origin) == file:
    return False
  own = class_definitions.of_file(pathlib.Path(spec.origin)).get(cls.__name__)
  other = class_definitions.of_file(file).get(cls.__name__)
  return None not in (own, other) and own != other
