"""Classes whose definition in a checkout differs from the installed one.

Modules that a checkout and the installed Lingvo both have come from the
installation, so a class that a fork changed is used without the changes.
"""

import ast
import functools
import importlib.util
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

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
  used = {
    base
    for cls in _classes(params)
    for base in cls.__mro__
    if base.__module__.startswith(_LINGVO)
  }
  return sorted(
    f'{cls.__module__}.{cls.__qualname__}'
    for cls in used
    if _differs(cls, checkout)
  )


def described(params: Any, checkout: pathlib.Path | None) -> str:
  """Returns a sentence about these classes, or ''."""
  names = of(params, checkout)
  if not names:
    return ''
  return (
    f'the installed Lingvo is used for these classes, and {checkout} defines'
    f' them otherwise: {", ".join(names)}'
  )


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
  own = _definitions(pathlib.Path(spec.origin)).get(cls.__name__)
  other = _definitions(file).get(cls.__name__)
  return None not in (own, other) and own != other


@functools.cache
def _definitions(file: pathlib.Path) -> dict[str, str]:
  """Returns the classes of a file as text without comments and docstrings."""
  try:
    tree = ast.parse(file.read_bytes())
  except (OSError, SyntaxError, ValueError):
    return {}
  return {
    node.name: ast.dump(_without_docstrings(node))
    for node in tree.body
    if isinstance(node, ast.ClassDef)
  }


def _without_docstrings(node: ast.ClassDef) -> ast.ClassDef:
  for inner in ast.walk(node):
    body = getattr(inner, 'body', None)
    if (
      isinstance(inner, ast.ClassDef | ast.FunctionDef)
      and isinstance(body[0], ast.Expr)
      and isinstance(body[0].value, ast.Constant)
      and isinstance(body[0].value.value, str)
    ):
      inner.body = body[1:]
  return node
