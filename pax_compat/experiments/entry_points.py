"""Finds the packages in entry points without importing them."""

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pathlib
import sys
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
  for entry in of_group(group):
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


def of_group(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
  """Returns the entry points of a group, sorted by name and value.

  To find them opens a file of each installed distribution, and each registered
  experiment asks for them, so they are found once.
  """
  return _found(group, _changes_of_path())


@functools.cache
def _found(
  group: str, changes: tuple[tuple[str, int], ...]
) -> tuple[importlib.metadata.EntryPoint, ...]:
  """Finds the entry points of a group.

  Args:
    group: the name of the group.
    changes: when the folders changed in which distributions are installed.
  """
  del changes  # A key of the cache.
  entries = importlib.metadata.entry_points(group=group)
  return tuple(sorted(entries, key=lambda e: (e.name, e.value)))


def _changes_of_path() -> tuple[tuple[str, int], ...]:
  """Returns the folders of `sys.path` with the times of their changes [ns]."""
  times = []
  for folder in sys.path:
    try:
      times.append((folder, os.stat(folder or '.').st_mtime_ns))
    except OSError:
      times.append((folder, 0))
  return tuple(times)


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
