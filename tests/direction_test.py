"""The rules of the house that can be checked: direction, sizes, and taboos."""

import ast
import collections
import dataclasses
import graphlib
import re
import subprocess
import sys

import pytest

from adaptors.lingvo_registry import options as lingvo_options
from pax_compat.experiments import options
from tests import source_tree

# What a package must not import, of what is ours.
FORBIDDEN = {
  'pax_compat': {'adaptors', 'lm_tasks', 'tests', 'benchmarks'},
  'adaptors': {'lm_tasks', 'tests', 'benchmarks'},
  'lm_tasks': {'tests', 'benchmarks'},
}
# The gate, and the loader of native ops that it calls.
GATE = ('adaptors/lingvo_runtime.py', 'adaptors/native/native_ops.py')
# Entry points and commands import late what answers to --help do not need.
LATE_IMPORTS = {
  'adaptors/experiments/lingvo_source.py',
  'pax_compat/tools/generate.py',
  'pax_compat/tools/inspect_checkpoint.py',
  'pax_compat/tools/inspect_input.py',
  'pax_compat/tools/report.py',
}
# At the root of a package lie its public names and its gate.
MAX_MODULES = {'pax_compat': 16, 'adaptors': 7}
LEGACY = 'lm_tasks/lingvo_params/'
# Only SeqIO's own programs import it: it registers tasks.
FOR_SEQIO = 'lm_tasks/c4_tasks.py'
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
TEXT_SUFFIXES = ('.py', '.md', '.txt', '.toml', '.json', '.cfg', '.yaml', '')
# The brackets keep this line from finding itself.
TABOOS = re.compile(
  r'(?<![\w.])/wor[k]\b|pyp[i]\.org|pythonhoste[d]|index-ur[l]'
)
# The attributes in which Fiddle keeps a config; the brackets as above.
FIDDLE_INTERNALS = re.compile(r'__(fn_or_cl[s]|argument[s]|signature_inf[o])__')
FIDDLE_OWNERS = (
  'pax_compat/config.py',
  'pax_compat/config_core/fiddle_state.py',
)
PICKLES = {'pickle', 'cloudpickle', 'dill', 'marshal', 'shelve'}
SNIPPET = """
import importlib, sys
for name in sys.argv[2:]:
  importlib.import_module(name)
  for heavy in sys.argv[1].split(','):
    assert heavy not in sys.modules, f'{name} loads {heavy}'
"""


def _is_heavy(top: str) -> bool:
  """Whether a top-level module is of TensorFlow, Lingvo or SeqIO."""
  return top.startswith('tensorflow') or top in ('lingvo', 'seqio', 'tf_keras')


def _found(found: list[str]) -> None:
  assert not found, '\n' + '\n'.join(found)


def test_packages_import_in_one_direction():
  _found(
    [
      f'{path}:{i.line} imports {i.module}'
      for package, forbidden in FORBIDDEN.items()
      for path in source_tree.python_files(package)
      for i in source_tree.imports(path)
      if i.top in forbidden
    ]
  )


def test_no_module_needs_another_one_loaded_first():
  files = source_tree.python_files(*source_tree.PACKAGES)
  modules = {source_tree.module_name(path): path for path in files}
  loaded = {
    module: {_owner(i, modules) for i in source_tree.imports(path)} - {module}
    for module, path in modules.items()
  }
  graphlib.TopologicalSorter(loaded).prepare()  # Raises, and names the circle.


def test_folders_import_in_one_direction():
  folders = source_tree.folder_imports('benchmarks', *source_tree.PACKAGES)
  graphlib.TopologicalSorter(folders).prepare()  # Raises, and names the circle.


def test_a_circle_of_folders_is_found():
  imports = {'a/one.py': ['b.two'], 'b/two.py': ['a.three'], 'a/three.py': []}
  with pytest.raises(graphlib.CycleError):
    folders = source_tree.imports_of_folders(imports)
    graphlib.TopologicalSorter(folders).prepare()


def test_late_imports_are_those_of_entry_points():
  """Imports within functions of our own modules, for quick answers."""
  found = {
    path
    for path in source_tree.python_files(*source_tree.PACKAGES)
    for i in source_tree.imports(path)
    if i.in_function and not i.call and i.top in source_tree.PACKAGES
  }
  late = {p for p in found if not p.endswith(('__main__.py', 'main.py'))}
  assert late <= LATE_IMPORTS


def test_rooms_are_small():
  folders = collections.Counter(
    path.rpartition('/')[0]
    for path in source_tree.python_files('benchmarks', *source_tree.PACKAGES)
    if not path.endswith('__init__.py')
  )
  for folder, modules in folders.items():
    assert modules <= MAX_MODULES.get(folder, 20), folder


def _owner(found: source_tree.Import, modules) -> str:
  """Returns the module that is imported: `a.b` for its name `a.b.c` too."""
  if found.module in modules:
    return found.module
  return found.module.rpartition('.')[0]


def test_core_names_no_option_of_lingvo():
  kind = lingvo_options.LingvoOptions
  fields = {field.name for field in dataclasses.fields(kind)}
  none_default = kind(**dict.fromkeys(fields, object()))
  names = fields | {flag for flag, _ in options.changed(none_default)}
  assert {'lingvo', 'lingvo_logdir', 'translation'} <= names
  spelled = re.compile(rf'--(no)?({"|".join(sorted(names))})\b')
  found = []
  for path in source_tree.python_files('pax_compat'):
    for node in ast.walk(source_tree.tree(path)):
      [text] = _strings([node]) or ['']
      # A library is called `lingvo` too, which only a flag must not be.
      defined = set(_strings(getattr(node, 'args', ()))) & names
      if text in names - {'lingvo'} or spelled.search(text):
        found.append(f'{path}:{node.lineno} {text}')
      elif _identifier(node) in names or defined:
        found.append(f'{path}:{node.lineno} {ast.unparse(node)}')
  _found(found)


def _strings(nodes) -> list[str]:
  nodes = nodes if isinstance(nodes, list) else []
  found = [n.value for n in nodes if isinstance(n, ast.Constant)]
  return [value for value in found if isinstance(value, str)]


def _identifier(node: ast.AST) -> str | None:
  """Returns the name that a node reads, sets, passes or defines, if any."""
  fields = ('id', 'attr', 'arg', 'name')
  return next((getattr(node, f) for f in fields if hasattr(node, f)), None)


def test_core_imports_no_tensorflow():
  _found(
    [
      f'{path}:{i.line} imports {i.module}'
      for path in source_tree.python_files('pax_compat')
      for i in source_tree.imports(path)
      if _is_heavy(i.top) or i.module.startswith('jax.experimental.jax2tf')
    ]
  )


def test_lingvo_is_reached_through_the_gate():
  found = []
  for path in source_tree.python_files('adaptors', 'lm_tasks'):
    if path.startswith(LEGACY):
      continue  # Lingvo loads these, after the gate.
    for i in source_tree.imports(path):
      allowed = (
        path in GATE or i.top == 'seqio' or i.call == 'lingvo_runtime.module'
      )
      if _is_heavy(i.top) and not (allowed and i.in_function):
        found.append(f'{path}:{i.line} imports {i.module}')
  _found(found)


@pytest.mark.parametrize(
  'packages, heavy',
  [
    (['pax_compat'], 'tensorflow,lingvo,seqio,adaptors,lm_tasks'),
    (['adaptors', 'lm_tasks'], 'tensorflow'),
  ],
)
def test_importing_leaves_tensorflow_out(packages, heavy):
  names = [
    source_tree.module_name(path)
    for path in source_tree.python_files(*packages)
    if not path.startswith(LEGACY) and path != FOR_SEQIO
  ]
  done = subprocess.run(
    [sys.executable, '-c', SNIPPET, heavy, *names],
    cwd=source_tree.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr


def test_every_package_is_installed():
  for package in source_tree.PACKAGES:
    for path in source_tree.python_files(package):
      init = (source_tree.ROOT / path).parent / '__init__.py'
      assert init.exists(), f'{path}: its folder has no __init__.py'


def test_files_and_functions_are_small():
  found = []
  for path in source_tree.python_files():
    lines = len((source_tree.ROOT / path).read_text().splitlines())
    if lines > MAX_FILE_LINES:
      found.append(f'{path}: {lines} lines')
    for node in ast.walk(source_tree.tree(path)):
      if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines = node.end_lineno - node.lineno + 1
        if lines > MAX_FUNCTION_LINES:
          found.append(f'{path}:{node.lineno} {node.name}: {lines} lines')
  _found(found)


def test_only_config_knows_how_fiddle_keeps_a_config():
  _found(
    [
      f'{path}:{number} {line.strip()}'
      for path in source_tree.python_files()
      if path not in FIDDLE_OWNERS
      for number, line in enumerate(_lines_of(path), 1)
      if FIDDLE_INTERNALS.search(line)
    ]
  )


def _lines_of(path: str) -> list[str]:
  return (source_tree.ROOT / path).read_text().splitlines()


def test_files_name_no_machine():
  found = []
  for path in _text_files():
    text = path.read_text(errors='replace')
    for number, line in enumerate(text.splitlines(), 1):
      if TABOOS.search(line):
        found.append(f'{path.relative_to(source_tree.ROOT)}:{number} {line}')
  _found(found)


def _text_files():
  """The project's own text files: the known folders and the top level."""
  folders = (*source_tree.PACKAGES, 'benchmarks', 'docs', 'tests', 'testdata')
  # In a git worktree `.git` is a file, with a path of the machine.
  files = [f for f in source_tree.ROOT.glob('*') if f.name != '.git']
  for folder in (*folders, '.ci'):
    files.extend((source_tree.ROOT / folder).rglob('*'))
  return [f for f in files if f.is_file() and f.suffix in TEXT_SUFFIXES]


def test_product_code_neither_evaluates_nor_unpickles():
  found = []
  for path in source_tree.python_files(*source_tree.PACKAGES):
    for i in source_tree.imports(path):
      if i.top in PICKLES:
        found.append(f'{path}:{i.line} imports {i.module}')
    for node in ast.walk(source_tree.tree(path)):
      if isinstance(node, ast.Call) and _is_taboo_call(node):
        found.append(f'{path}:{node.lineno} {ast.unparse(node)}')
  _found(found)


def _is_taboo_call(call: ast.Call) -> bool:
  name = getattr(call.func, 'id', None)
  pickles = any(
    k.arg == 'allow_pickle' and not _is_false(k.value) for k in call.keywords
  )
  return name in ('eval', 'exec') or pickles


def _is_false(node: ast.expr) -> bool:
  return isinstance(node, ast.Constant) and node.value is False
