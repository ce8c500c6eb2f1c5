"""BUILD: short, and what it names is there.

Bazel itself does not run here. A BUILD file is Python for `ast`.
"""

import ast

import pytest

from tests import setup_test, source_tree

MAX_LINES = 150
TEXT = (source_tree.ROOT / 'BUILD').read_text()
TREE = ast.parse(TEXT)


def _variables() -> dict:
  """Returns the lists and dicts of BUILD, by name."""
  return {
    node.targets[0].id: ast.literal_eval(node.value)
    for node in TREE.body
    if isinstance(node, ast.Assign)
  }


def _patterns() -> list[str]:
  """Returns the patterns of all globs."""
  return [
    pattern
    for node in ast.walk(TREE)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'glob'
    for argument in (*node.args, *(k.value for k in node.keywords))
    for pattern in ast.literal_eval(argument)
  ]


def _files(pattern: str) -> set[str]:
  """Returns the files that a glob of Bazel finds, relative to the root."""
  if pattern.endswith('/**'):
    pattern += '/*'
  found = source_tree.ROOT.glob(pattern)
  return {
    path.relative_to(source_tree.ROOT).as_posix()
    for path in found
    if path.is_file()
  }


def test_it_is_short():
  assert len(TEXT.splitlines()) <= MAX_LINES


@pytest.mark.parametrize('pattern', _patterns())
def test_globs_find_files(pattern):
  assert _files(pattern)


def test_globs_find_every_python_file():
  found = set().union(*map(_files, _patterns()))
  assert set(source_tree.python_files()) <= found | {'setup.py'}


@pytest.mark.parametrize(
  'module',
  [
    *_variables()['COMMANDS'].values(),
    *(f'benchmarks.{name}' for name in _variables()['BENCHMARKS']),
  ],
)
def test_binaries_can_be_run(module):
  path = source_tree.ROOT / module.replace('.', '/')
  path = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
  assert "if __name__ == '__main__':" in path.read_text()


@pytest.mark.parametrize(
  'name', ['CORE', 'LINGVO', 'SEQIO', 'GRAIN', 'REPORT', 'TUNE', 'TEST']
)
def test_distributions_are_those_of_setup(name):
  # Python's toolchain brings setuptools.
  expected = setup_test.declared()[name] - {'setuptools'}
  assert set(_variables()[name]) == expected


def test_module_file_is_python_too():
  ast.parse((source_tree.ROOT / 'MODULE.bazel').read_text())
