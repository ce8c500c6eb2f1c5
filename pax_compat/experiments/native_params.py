"""Installed packages of native experiments, found without importing them.

A distribution names its packages in the entry-point group
`pax_compat.native_params`, together with what the experiments' names begin
with:

    'pax_compat.native_params': ['tasks.lm.params = my_package.params']

So `tasks.lm.params.c4.Model` is the class `Model` of `my_package.params.c4`.
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
  """Returns the module that has the experiment of a full name.

  Args:
    name: as `names` returns it.
  """
  for prefix, package, _ in _packages():
    if name.startswith(f'{prefix}.'):
      return package + name.removeprefix(prefix).rpartition('.')[0]
  return None


def public_name(module: str, cls: str) -> str:
  """Returns the name of the experiment `cls` that a module registers."""
  for prefix, package, _ in _packages():
    if module.startswith(f'{package}.'):
      return f'{prefix}{module.removeprefix(package)}.{cls}'
  return f'{module}.{cls}'


def _packages() -> Iterator[tuple[str, str, pathlib.Path]]:
  """Yields (beginning of names, package, folder).

  Raises:
    UserError: an entry point names a package that is not there.
  """
  for entry, folders in entry_points.packages(GROUP):
    for folder in folders:
      yield entry.name, entry.module, folder
