"""Finds the packages in entry points without importing them."""

import importlib.machinery
import importlib.metadata
import importlib.util
import pathlib
from collections.abc import Iterator

from pax_compat import errors


def packages(
  group: str,
) -> Iterator[tuple[importlib.metadata.EntryPoint, list[pathlib.Path]]]:
  """Yields the entry points of a group with the folders of their packages.

  Args:
    group: the name of the group. Its entry points are sorted by name and value.

  Raises:
    UserError: an entry point does not name an installed package.
  """
  entries = importlib.metadata.entry_points(group=group)
  for entry in sorted(entries, key=lambda e: (e.name, e.value)):
    spec = find_spec(entry.module)
    if spec is None or not spec.submodule_search_locations:
      owner = entry.dist.name if entry.dist else 'an unknown distribution'
      raise errors.UserError(
        f'the entry point `{entry.name} = {entry.value}` of {owner} in the'
        f' group {group} does not name an installed package; expected one with'
        ' modules of experiments'
      )
    folders = spec.submodule_search_locations
    yield entry, [pathlib.Path(folder).resolve() for folder in folders]


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
  """Returns the spec of a module, None if it does not exist.

  Unlike `importlib.util.find_spec`, it does not import the parent packages.
  """
  top, *rest = name.split('.')
  spec = importlib.util.find_spec(top)
  for part in rest:
    if spec is None or spec.submodule_search_locations is None:
      return None
    spec = importlib.machinery.PathFinder.find_spec(
      part, spec.submodule_search_locations
    )
  return spec
