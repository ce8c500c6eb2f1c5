"""The Python files of this project and what they import, read with `ast`."""

import ast
import dataclasses
import functools
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ('pax_compat', 'adaptors', 'lm_tasks')
# Calls that import the module which their first argument names.
_IMPORTING_CALLS = (
  '__import__',
  'importlib.import_module',
  'lingvo_runtime.module',
)


@dataclasses.dataclass(frozen=True)
class Import:
  """One import of a file.

  Attributes:
    module: the dotted name; of `from a.b import c` it is `a.b.c`, which is
      either a module or a name in the module `a.b`.
    line: where it stands.
    in_function: whether it runs only when a function is called.
    call: the function, where the import is a call with a name in quotes.
  """

  module: str
  line: int
  in_function: bool
  call: str = ''

  @property
  def top(self) -> str:
    return self.module.split('.')[0]


def python_files(*folders: str) -> list[str]:
  """Returns the Python files under the folders, relative to the root, sorted.

  Args:
    *folders: top-level folders; by default everything that is ours.
  """
  if not folders:
    folders = (*PACKAGES, 'benchmarks', 'tests')
    files = [ROOT / 'setup.py']
  else:
    files = []
  for folder in folders:
    files.extend((ROOT / folder).rglob('*.py'))
  return sorted(f.relative_to(ROOT).as_posix() for f in files)


@functools.cache
def tree(path: str) -> ast.Module:
  return ast.parse((ROOT / path).read_text(), filename=path)


def module_name(path: str) -> str:
  """Returns `a.b` for `a/b.py` and for `a/b/__init__.py`."""
  return path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')


@functools.cache
def imports(path: str) -> tuple[Import, ...]:
  """Returns every import of a file, those inside functions included."""
  return tuple(_walk(tree(path), in_function=False))


def _walk(node: ast.AST, *, in_function: bool) -> Iterator[Import]:
  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
    in_function = True
  for module in _statement(node):
    yield Import(module, node.lineno, in_function)
  if isinstance(node, ast.Call) and node.args:
    call, module = ast.unparse(node.func), node.args[0]
    if call in _IMPORTING_CALLS and isinstance(module, ast.Constant):
      yield Import(module.value, node.lineno, in_function, call)
  for child in ast.iter_child_nodes(node):
    yield from _walk(child, in_function=in_function)


def _statement(node: ast.AST) -> list[str]:
  if isinstance(node, ast.Import):
    return [alias.name for alias in node.names]
  if isinstance(node, ast.ImportFrom):
    if node.level:
      raise ValueError(f'line {node.lineno}: imports here are absolute')
    return [f'{node.module}.{alias.name}' for alias in node.names]
  return []


def folder_imports(*folders: str) -> dict[str, set[str]]:
  """Returns which folders import which, those inside functions included.

  A folder is a node; a file that lies beside sub-folders is one of its own.
  """
  files = python_files(*folders)
  return imports_of_folders(
    {path: [i.module for i in imports(path)] for path in files}
  )


def imports_of_folders(
  imported: dict[str, list[str]],
) -> dict[str, set[str]]:
  """Returns the nodes that each node imports, see `folder_imports`.

  Args:
    imported: dotted names of modules, or of names in them, by path.
  """
  modules = {module_name(path): path for path in imported}
  parents = {str(pathlib.PurePosixPath(p).parent.parent) for p in imported}

  def node(path: str) -> str:
    folder, _, name = path.rpartition('/')
    alone = folder in parents and name != '__init__.py'
    return path if alone else folder

  found = {}
  for path, names in imported.items():
    targets = {
      modules.get(name) or modules.get(name.rpartition('.')[0])
      for name in names
    }
    nodes = {node(target) for target in targets if target}
    found.setdefault(node(path), set()).update(nodes - {node(path)})
  return found
