"""The list of slow tests, and that those in the lists exist."""

import ast
import doctest
import functools

from tests import exhaustive_tests, slow_tests, source_tree


def test_the_example():
  tried = doctest.testmod(slow_tests)
  assert tried.attempted and not tried.failed


def test_some_are_never_slow():
  test, *_ = slow_tests.NEVER
  assert not slow_tests.choose({test: 10 * slow_tests.LIMIT})
  assert slow_tests.choose({f'{test}_too': 10 * slow_tests.LIMIT})


def test_each_is_a_test_of_the_project():
  listed = slow_tests.listed() | exhaustive_tests.listed()
  names = {slow_tests.function(test) for test in listed}
  missing = [name for name in {*names, *slow_tests.NEVER} if not _exists(name)]
  assert not missing, sorted(missing)


def _exists(name: str) -> bool:
  path, _, function = name.partition('::')
  return function in _functions(path)


@functools.cache
def _functions(path: str) -> set[str]:
  file = source_tree.ROOT / path
  if not file.exists():
    return set()
  nodes = ast.parse(file.read_text()).body
  return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
