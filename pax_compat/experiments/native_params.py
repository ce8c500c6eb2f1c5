"""Finds native experiments of installed packages without importing them.

A distribution lists its packages in the entry-point group
`pax_compat.native_params`, each with a prefix for the names of its experiments:

    'pax_compat.native_params': ['tasks.lm.params = my_package.params']

Then `tasks.lm.params.c4.Model` is the class `Model` in `my_package.params.c4`.
"""

import pathlib
from collections.abc import Iterator

from pax_compat.experiments import entry_points, source_scan

GROUP = 'pax_compat.native_params'
_DECORATORS = ('register',)


def names() -> dict[str, str]:
  """Returns the experiments' names with the first lines of their docstrings."""
  found = {}
  for prefix, _, folder in _packages():
    files = {
      f'{prefix}.{name}': path
      for name, path in source_scan.modules_in(folder)
      if 'experiment_registry' in path.read_text('utf-8')
    }
    found |= source_scan.scan(files, _DECORATORS)
  return found


def module_of(name: str) -> str | None:
  """Returns the module of an experiment, None if its prefix is unknown.

  Args:
    name: the full name, as in `names`.
  """
  for prefix, package, _ in _packages():
    if name.startswith(f'{prefix}.'):
      return package + name.removeprefix(prefix).rpartition('.')[0]
  return None


def public_name(module: str, cls: str) -> str:
  """Returns the full name of the experiment `cls` in a module."""
  for prefix, package, _ in _packages():
    if module.startswith(f'{package}.'):
      return f'{prefix}{module.removeprefix(package)}.{cls}'
  return f'{module}.{cls}'


def _packages() -> Iterator[tuple[str, str, pathlib.Path]]:
  """Yields (prefix of the names, package, folder).

  Raises:
    UserError: an entry point does not name an installed package.
  """
  for entry, folders in entry_points.packages(GROUP):
    for folder in folders:
      yield entry.name, entry.module, folder
