"""Tests of finding the packages in entry points."""

import sys

import pytest

from pax_compat import errors
from pax_compat.experiments import entry_points

GROUP = 'pax_compat.of_these_tests'


@pytest.fixture
def declare(tmp_path, monkeypatch):
  """Returns a function that installs a distribution with entry points."""
  monkeypatch.syspath_prepend(tmp_path)

  def write(*lines):
    info = tmp_path / 'mine-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Name: mine\nVersion: 1.0\n')
    (info / 'entry_points.txt').write_text('\n'.join([f'[{GROUP}]', *lines]))
    return tmp_path

  return write


def test_packages_are_found_and_not_imported(declare):
  folder = declare('b = of_these_tests.inner', 'a = of_these_tests')
  inner = folder / 'of_these_tests' / 'inner'
  inner.mkdir(parents=True)
  for package in (inner, inner.parent):
    (package / '__init__.py').write_text('raise SystemExit')
  found = [(e.name, folders) for e, folders in entry_points.packages(GROUP)]
  assert found == [('a', [inner.parent]), ('b', [inner])]
  assert 'of_these_tests' not in sys.modules


@pytest.mark.parametrize('named', ['nothing_here', 'json.decoder', 'os.path.x'])
def test_an_entry_point_without_a_package_is_reported(declare, named):
  declare(f'a = {named}')
  message = f'`a = {named}` of mine in the group {GROUP} does not name'
  with pytest.raises(errors.UserError, match=message):
    list(entry_points.packages(GROUP))
