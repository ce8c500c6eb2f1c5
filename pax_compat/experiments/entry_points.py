"""Packages that entry points name, found without importing them."""

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
    group: its name. They come in the order of names and values.

  Raises:
    UserError: an entry point names a package that is not there.
  """
  entries = importlib.metadata.entry_points(group=group)
  for entry in sorted(entries, key=lambda e: (e.name, e.value)):
    spec = find_spec(entry.module)
    if spec is None or not spec.submodule_search_locations:
      owner = entry.dist.name if entry.dist else 'an unknown distribution'
      raise errors.UserError(
        f'the entry point `{entry.name} = {entry.value}` of {owner} in the'
        f' group {group} names no package that can be found; expected one that'
        ' holds modules of experiments'
      )
    folders = spec.submodule_search_locations
    yield entry, [pathlib.Path(folder).resolve() for folder in folders]


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
  """Returns a module's spec, None if it is not there.

  Unlike `importlib.util.find_spec`, it does not import the packages it is in.

  Args:
    name: the full name.
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
