"""Names of older versions and of forks, in modules of the installed Lingvo.

Code that was written for an older Lingvo, or for a fork, runs without changes:

*   Names that Lingvo changed stay valid (see `renames`):
    `lingvo.core.lr_schedule` is `lingvo.core.schedule`.
*   `base_layer.initializer`, a decorator that older layers need, returns the
    `__init__` that it decorates.
*   A function or class that only the checkout of `--lingvo_source` has, in a
    file of a module that is installed, is defined in that module, with what its
    definition needs and the module lacks. Definitions that the installed module
    has are never replaced.

The log lists what is used.
"""

import ast
import builtins
import importlib.abc
import importlib.machinery
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from absl import logging

from adaptors.stand_ins import renames

_LINGVO = 'lingvo'
_INITIALIZER = 'lingvo.core.base_layer.initializer'


def install() -> None:
  """Lets modules of Lingvo find old names. Later calls do nothing."""
  if _finder not in sys.meta_path:
    # First, because it changes the loaders that the other finders choose.
    sys.meta_path.insert(0, _finder)
    for name, module in list(sys.modules.items()):
      _finder.extend(name, module)


def use_checkout(root: pathlib.Path) -> None:
  """Lets modules of Lingvo find names of a checkout, and `install`s.

  Args:
    root: of the checkout.
  """
  _finder.root = root
  install()


class _Finder(importlib.abc.MetaPathFinder):
  """Finds renamed modules; extends the modules that the other finders find.

  Attributes:
    root: of the checkout; None for none.
  """

  def __init__(self):
    self.root: pathlib.Path | None = None

  def find_spec(self, fullname, path=None, target=None):
    """Returns the spec of a module of Lingvo; None for all others."""
    if not fullname.startswith(f'{_LINGVO}.'):
      return None
    spec = next(
      filter(None, self._found_by_others(fullname, path, target)), None
    )
    new = renames.MODULES.get(fullname)
    if new and (spec is None or self._is_of_checkout(spec)):
      return importlib.machinery.ModuleSpec(fullname, _Renamed(new))
    # Other kinds of loaders make modules of their own, such as packages.
    if spec and type(spec.loader) is importlib.machinery.SourceFileLoader:
      spec.loader = _Loader(fullname, spec.loader.path)
    return spec

  def extend(self, name: str, module: Any):
    """Lets a module of Lingvo find names that it lacks."""
    own = getattr(module, '__file__', None)
    if (
      name.startswith(f'{_LINGVO}.')
      and own
      and '__getattr__' not in vars(module)
    ):
      module.__getattr__ = _Names(module)

  def file_of(self, module: types.ModuleType) -> pathlib.Path | None:
    """Returns the checkout's file of an installed module, or None."""
    if self.root is None:
      return None
    path = self.root.joinpath(*module.__name__.split('.')).with_suffix('.py')
    is_other = pathlib.Path(module.__file__).resolve() != path
    return path if is_other and path.is_file() else None

  def _found_by_others(self, fullname: str, path: Any, target: Any):
    for finder in sys.meta_path:
      if finder is not self and hasattr(finder, 'find_spec'):
        yield finder.find_spec(fullname, path, target)

  def _is_of_checkout(self, spec: importlib.machinery.ModuleSpec) -> bool:
    origin = pathlib.Path(spec.origin or '')
    return self.root is not None and origin.is_relative_to(self.root)


class _Renamed(importlib.abc.Loader):
  """Loads a module under its old name."""

  def __init__(self, new: str):
    self._new = new

  def create_module(self, spec):
    """Returns None: an empty module, which `exec_module` replaces."""
    return None

  def exec_module(self, module):
    """Puts the module of today in its place."""
    logging.info('%s is called %s now', module.__name__, self._new)
    sys.modules[module.__name__] = importlib.import_module(self._new)


class _Loader(importlib.machinery.SourceFileLoader):
  """Loads a module and lets it find names that it lacks."""

  def exec_module(self, module):
    """Runs the module."""
    # Before, for modules that import one another.
    _finder.extend(module.__name__, module)
    super().exec_module(module)


_finder = _Finder()


class _Names:
  """The `__getattr__` of a module."""

  def __init__(self, module: types.ModuleType):
    self._module = module
    self._nodes: dict[str, ast.stmt] | None = None
    self._pending: set[str] = set()

  def __call__(self, name: str) -> Any:
    """Returns the value of a name that the module lacks.

    Raises:
      AttributeError: the name is unknown.
    """
    full = f'{self._module.__name__}.{name}'
    new = renames.current(full)
    if new or full == _INITIALIZER:
      value = _value_of(new) if new else _unchanged
      logging.info('%s is %s now', full, new or 'without effect')
      setattr(self._module, name, value)
      return value
    if not name.startswith('__') and name not in self._pending:
      nodes = self._definitions()
      if name in nodes:
        self._define(name, nodes)
        return vars(self._module)[name]
    raise AttributeError(
      f'module {self._module.__name__!r} has no attribute {name!r}'
      + renames.hint(full),
      name=name,
      obj=self._module,
    )

  def _definitions(self) -> dict[str, ast.stmt]:
    """Returns the statements of the checkout's file by what they define."""
    if self._nodes is None:
      file = _finder.file_of(self._module)
      if file is None:
        return {}  # A checkout may be mounted later.
      self._nodes = _statements(file)
    return self._nodes

  def _define(self, name: str, nodes: dict[str, ast.stmt]):
    """Runs the definition of a name, after those that it needs."""
    self._pending.add(name)
    try:
      for needed in _names_in(nodes[name]):
        is_known = needed in vars(self._module) or hasattr(builtins, needed)
        if needed in nodes and not is_known and needed not in self._pending:
          self._define_if_importable(needed, nodes)
      file = _finder.file_of(self._module)
      if not isinstance(nodes[name], ast.Import | ast.ImportFrom):
        logging.info(
          '%s.%s is in the checkout only: %s:%d',
          *(self._module.__name__, name, file, nodes[name].lineno),
        )
      _Statement(nodes[name], file).exec_module(self._module)
    finally:
      self._pending.discard(name)

  def _define_if_importable(self, name: str, nodes: dict[str, ast.stmt]):
    """Runs a definition; logs an import that fails, which may be unneeded."""
    try:
      self._define(name, nodes)
    except ImportError as error:
      if not isinstance(nodes[name], ast.Import | ast.ImportFrom):
        raise
      logging.warning(
        '%s of %s is not defined: %s',
        name,
        _finder.file_of(self._module),
        error,
      )


class _Statement(importlib.abc.InspectLoader):
  """Runs one statement of a file in a module."""

  def __init__(self, node: ast.stmt, file: pathlib.Path):
    self._node, self._file = node, file

  def get_source(self, fullname):
    """Returns None: the module's source is that of its own loader."""
    return None

  def get_code(self, fullname):
    """Returns the code of the statement, with its lines in the file."""
    tree = ast.Module([self._node], type_ignores=[])
    return compile(tree, str(self._file), 'exec')


def _unchanged(init):
  """Returns an `__init__`: `initializer` decorated those of older layers."""
  return init


def _value_of(full: str) -> Any:
  """Returns the function or class of a full name."""
  module, _, name = full.rpartition('.')
  return getattr(importlib.import_module(module), name)


def _statements(file: pathlib.Path) -> dict[str, ast.stmt]:
  """Returns the top-level statements of a file by the names they define."""
  try:
    tree = ast.parse(file.read_bytes())
  except (SyntaxError, ValueError) as error:  # Such as Python 2.
    logging.warning('%s is not Python 3, and is not used: %s', file, error)
    return {}
  return {name: node for node in tree.body for name in _defined_by(node)}


def _defined_by(node: ast.stmt) -> Iterator[str]:
  if isinstance(node, ast.FunctionDef | ast.ClassDef):
    yield node.name
  elif isinstance(node, ast.Assign):
    yield from (t.id for t in node.targets if isinstance(t, ast.Name))
  elif isinstance(node, ast.Import):
    yield from (a.asname or a.name.partition('.')[0] for a in node.names)
  elif isinstance(node, ast.ImportFrom) and node.module != '__future__':
    yield from (a.asname or a.name for a in node.names)


def _names_in(node: ast.stmt) -> list[str]:
  """Returns the names that a statement reads."""
  return [
    inner.id
    for inner in ast.walk(node)
    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
  ]
