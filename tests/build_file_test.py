"""BUILD holds every Python file once, with the dependencies it imports.

`python -m tests.build_file_test --write` writes BUILD anew.
"""

import ast
import sys
from collections.abc import Iterator

from tests import source_tree

BUILD = source_tree.ROOT / 'BUILD'
REWRITE = 'python -m tests.build_file_test --write'
HEADER = f"""\
# Written by `{REWRITE}`, which is also the test
# that holds it against the sources. A target is named like its file.

load("@pypi//:requirements.bzl", "requirement")
load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

package(default_visibility = ["//visibility:public"])

licenses(["notice"])  # Apache 2.0

exports_files(["LICENSE"])

filegroup(
    name = "testdata",
    srcs = ["pyproject.toml"] + glob(["testdata/**"]),
)
"""
KINDS = ('py_library', 'py_binary', 'py_test')
# Distributions that are not called like the module that they install.
DISTRIBUTIONS = {
  'IPython': 'ipython',
  'absl': 'absl-py',
  'google': 'protobuf',
  'orbax': 'orbax-checkpoint',
}


def targets() -> dict[str, dict]:
  """Returns what BUILD should say: target name -> rule and attributes."""
  files = source_tree.python_files()
  modules = {source_tree.module_name(f): _name(f) for f in files}
  return {_name(f): _target(f, modules) for f in files}


def _name(path: str) -> str:
  return path.removesuffix('.py')


def _target(path: str, modules: dict[str, str]) -> dict:
  deps = {_dependency(i.module, modules) for i in source_tree.imports(path)}
  target = {'srcs': [path]}
  if path.endswith('_test.py'):
    deps |= {':tests/conftest', _requirement('pytest')}
    # The test runs as `python -m pytest tests/a_test.py`.
    target |= {'kind': 'py_test', 'args': [path], 'main_module': 'pytest'}
    target |= {'data': [':testdata']}
  elif _is_runnable(path):
    target |= {'kind': 'py_binary', 'main': path}
  else:
    target |= {'kind': 'py_library'}
  deps -= {None, f':{_name(path)}'}
  return target | {'deps': sorted(deps)}


def _dependency(module: str, modules: dict[str, str]) -> str | None:
  """Returns the label of what an import needs, None for the standard library.

  Raises:
    ValueError: the module would be ours, but there is no such file.
  """
  top = module.split('.')[0]
  if top in sys.stdlib_module_names:
    return None
  parent = module.rpartition('.')[0]
  for name in (module, parent):
    if name in modules:
      return f':{modules[name]}'
  if top in (*source_tree.PACKAGES, 'benchmarks', 'tests'):
    raise ValueError(f'{module} is imported, but there is no such file')
  return _requirement(top)


def _requirement(top: str) -> str:
  name = DISTRIBUTIONS.get(top, top.replace('_', '-'))
  return f'requirement("{name}")'


def _is_runnable(path: str) -> bool:
  return any(
    isinstance(node, ast.If) and '__name__' in ast.unparse(node.test)
    for node in source_tree.tree(path).body
  )


def render() -> str:
  """Returns the text of BUILD."""
  return '\n'.join([HEADER, *(_render(n, t) for n, t in targets().items())])


def _render(name: str, target: dict) -> str:
  lines = [f'{target["kind"]}(', f'    name = "{name}",']
  for key in ('srcs', 'args', 'data', 'main', 'main_module', 'deps'):
    value = target.get(key)
    if isinstance(value, str):
      lines.append(f'    {key} = "{value}",')
    elif value and len(value) == 1:
      lines.append(f'    {key} = [{_label(value[0])}],')
    elif value:
      lines.append(f'    {key} = [')
      lines.extend(f'        {_label(v)},' for v in value)
      lines.append('    ],')
  return '\n'.join([*lines, ')', ''])


def _label(value: str) -> str:
  return value if value.startswith('requirement(') else f'"{value}"'


def parse(text: str) -> Iterator[tuple[str, dict]]:
  """Yields each Python target of a BUILD file: its name and attributes."""
  for node in ast.parse(text).body:
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and call.func.id in KINDS:
      target = {k.arg: _value(k.value) for k in call.keywords}
      yield target.pop('name'), target | {'kind': call.func.id}


def _value(node: ast.expr) -> str | list[str]:
  if isinstance(node, ast.List):
    return [_value(e) for e in node.elts]
  if isinstance(node, ast.Call):
    return ast.unparse(node).replace("'", '"')
  return node.value


def test_every_file_is_in_exactly_one_target():
  found = [s for _, t in parse(BUILD.read_text()) for s in t['srcs']]
  assert sorted(found) == source_tree.python_files(), REWRITE


def test_targets_say_what_the_files_import():
  expected = targets()
  for name, target in parse(BUILD.read_text()):
    assert {'deps': []} | target == expected[name], f'{name}: {REWRITE}'


def test_third_party_modules_are_declared_in_setup():
  declared = _declared()
  for name, target in targets().items():
    for dep in target['deps']:
      if dep.startswith('requirement(') and name != 'setup':
        lists = declared.values()
        if name.startswith('pax_compat/'):
          lists = [declared['CORE']]
          if name == 'pax_compat/grain_input':  # Imports Grain when it is used.
            lists.append(declared['GRAIN'])
        assert any(dep in known for known in lists), f'{name} needs {dep}'


def _declared() -> dict[str, set[str]]:
  """Returns the distributions that each variable of setup.py names."""
  found = {}
  for node in source_tree.tree('setup.py').body:
    if isinstance(node, ast.Assign):
      values = [n for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
      names = {_requirement(_bare(v.value)) for v in values}
      found[node.targets[0].id] = names
  return found


def _bare(specifier: str) -> str:
  for mark in '[<>=~!':
    specifier = specifier.partition(mark)[0]
  return specifier


if __name__ == '__main__' and '--write' in sys.argv:
  BUILD.write_text(render())
