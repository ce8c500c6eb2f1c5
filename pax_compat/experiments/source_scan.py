"""Finds the classes that modules register by parsing their source."""

import ast
import pathlib
from collections.abc import Collection, Iterator, Mapping

from absl import logging


def scan(
  modules: Mapping[str, pathlib.Path], decorators: Collection[str]
) -> dict[str, str]:
  """Returns the first docstring line of each registered class, by name.

  Args:
    modules: source files by the prefix of the names of their classes.
    decorators: names of the decorators that register a class.

  Returns:
    First lines by `prefix.Class`. Files that cannot be parsed are skipped with
    a warning.
  """
  found = {}
  for name, path in modules.items():
    source = path.read_bytes()
    if not any(d.encode() in source for d in decorators):
      continue
    try:
      tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
      logging.warning('not listed: %s cannot be parsed: %s', path, error)
      continue
    for node in _registered_classes(tree, decorators):
      found[f'{name}.{node.name}'] = first_line(ast.get_docstring(node))
  return found


def _registered_classes(
  tree: ast.Module, decorators: Collection[str]
) -> Iterator[ast.ClassDef]:
  """Yields the classes with one of the decorators or an alias of it."""
  aliases = set(decorators)
  for node in tree.body:
    if isinstance(node, ast.ImportFrom):
      aliases |= {
        alias.asname
        for alias in node.names
        if alias.name in decorators and alias.asname
      }
    elif isinstance(node, ast.Assign) and _last_name(node.value) in aliases:
      aliases |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    elif isinstance(node, ast.ClassDef) and any(
      _last_name(_called(decorator)) in aliases
      for decorator in node.decorator_list
    ):
      yield node


def _called(decorator: ast.expr) -> ast.expr:
  """Returns `f` for the decorators `f` and `f(...)`."""
  return decorator.func if isinstance(decorator, ast.Call) else decorator


def _last_name(node: ast.expr) -> str | None:
  """Returns `c` for the expression `a.b.c`, None if it is not a name."""
  if isinstance(node, ast.Attribute):
    return node.attr
  return node.id if isinstance(node, ast.Name) else None


def first_line(docstring: str | None) -> str:
  """Returns the first line of a docstring, '' if there is none."""
  return (docstring or '').strip().partition('\n')[0].strip()


def modules_in(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
  """Yields the dotted name, relative to the folder, and file of each module.

  Tests and `__init__` files are skipped.
  """
  for path in sorted(folder.rglob('*.py')):
    parts = path.relative_to(folder).with_suffix('').parts
    if parts[-1] != '__init__' and not parts[-1].endswith('_test'):
      yield '.'.join(parts), path
