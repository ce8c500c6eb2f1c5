"""Every distribution that a file imports is declared in setup.py."""

import ast
import pathlib
import sys
from collections.abc import Iterable

from tests import source_tree

# Distributions that are not called like the module that they install.
DISTRIBUTIONS = {
  'IPython': 'ipython',
  'absl': 'absl-py',
  'google': 'protobuf',
  'google_crc32c': 'google-crc32c',
  'orbax': 'orbax-checkpoint',
  'xdist': 'pytest-xdist',
  'yaml': 'pyyaml',
}
OURS = {*source_tree.PACKAGES, 'benchmarks', 'tests'}
# Pax: checkouts that are recorded by hand, and names that `pax_names` mounts.
PAX = {'optax-shampoo', 'paxml', 'praxis'}
IMPORT_PAX = ('tests/pax/', 'tests/adaptors/pax_names/')


def declared() -> dict[str, set[str]]:
  """Returns the distributions that each list of setup.py names."""
  found = {}
  for node in source_tree.tree('setup.py').body:
    if isinstance(node, ast.Assign):
      names = set()
      for value in ast.walk(node.value):
        if isinstance(value, ast.Constant):
          names.add(_bare(value.value))
        elif isinstance(value, ast.Name) and value.id in found:
          names |= found[value.id]
      found[node.targets[0].id] = names
  return found


def _bare(specifier: str) -> str:
  for mark in '[<>=~!':
    specifier = specifier.partition(mark)[0]
  return specifier


def undeclared(
  path: str, imports: Iterable[str], lists: dict[str, set[str]]
) -> set[str]:
  """Returns the distributions that a file needs and may not import.

  `pax_compat` may import what a plain installation has; modules of Grain, those
  with `grain` in their name, what the extra `grain` adds, too; and the folder
  of reports what the extra `report` adds, that of studies what `tune` adds. The
  other packages may import whatever any list of setup.py names.

  Args:
    path: the file, relative to the root.
    imports: top-level names of the modules that it imports.
    lists: the distributions in each list of setup.py.
  """
  names = list(lists)
  if path.startswith('pax_compat/'):
    is_of_grain = 'grain' in pathlib.PurePath(path).stem
    names = ['CORE', 'GRAIN'] if is_of_grain else ['CORE']
    if path.startswith('pax_compat/tools/run_report/'):
      names.append('REPORT')
    if path.startswith('pax_compat/tuning/'):
      names.append('TUNE')
  allowed = set().union(*(lists[name] for name in names))
  needed = {
    DISTRIBUTIONS.get(top, top.replace('_', '-'))
    for top in set(imports) - OURS - set(sys.stdlib_module_names)
  }
  return needed - allowed


def test_third_party_modules_are_declared_in_setup():
  lists = declared()
  for path in source_tree.python_files():
    if path != 'setup.py':
      tops = [i.top for i in source_tree.imports(path)]
      allowed = PAX if path.startswith(IMPORT_PAX) else set()
      assert not undeclared(path, tops, lists) - allowed, path


def test_an_undeclared_module_is_found():
  lists = declared()
  tops = ['json', 'pax_compat', 'absl', 'made_up']
  assert undeclared('adaptors/x.py', tops, lists) == {'made-up'}
  assert undeclared('pax_compat/x.py', tops, lists) == {'made-up'}


def test_only_modules_of_grain_import_grain_in_the_core():
  lists = declared()
  for path in (
    'pax_compat/inputs/grain.py',
    'pax_compat/inputs/grain_input.py',
  ):
    assert not undeclared(path, ['grain'], lists)
    assert undeclared(path, ['tensorflow'], lists) == {'tensorflow'}
  for path in ('pax_compat/x.py', 'pax_compat/grain/x.py'):
    assert undeclared(path, ['grain'], lists) == {'grain'}
  assert not undeclared('lm_tasks/x.py', ['grain', 'tensorflow'], lists)


def test_only_reports_import_plotly_in_the_core():
  lists = declared()
  room = 'pax_compat/tools/run_report/charts.py'
  assert not undeclared(room, ['plotly'], lists)
  assert undeclared('pax_compat/tools/x.py', ['plotly'], lists) == {'plotly'}


def test_only_studies_import_optuna_in_the_core():
  lists = declared()
  room = 'pax_compat/tuning/algorithms.py'
  assert not undeclared(room, ['optuna'], lists)
  assert undeclared('pax_compat/tools/x.py', ['optuna'], lists) == {'optuna'}
