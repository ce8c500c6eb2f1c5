"""Definitions of classes in source files, to compare them."""

import ast
import functools
import pathlib

_NO_TYPES = ', type_params=[]'


@functools.cache
def of_file(file: pathlib.Path) -> dict[str, str]:
  """Returns the classes of a file as text without comments and docstrings."""
  try:
    tree = ast.parse(file.read_bytes())
  except (OSError, SyntaxError, ValueError):
    return {}
  return {
    # Python 3.12 has type parameters, which Lingvo's classes lack.
    node.name: ast.dump(_without_docstrings(node)).replace(_NO_TYPES, '')
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
