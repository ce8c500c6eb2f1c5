"""Exports of a package of layers: the public layers of all its modules.

A new layer needs no second listing: `layers.X` and `layers.attentions.X` exist
as soon as a module in the package defines a public layer `X`.
"""

import enum
import importlib
import pkgutil
from collections.abc import Iterable

import flax.linen as nn


def public_layers(
  package: str, path: Iterable[str], apart: Iterable[str] = ()
) -> dict[str, type]:
  """Imports all modules of a package and returns their public layers by name.

  These are layers and enums without a leading underscore, in the module that
  defines them.

  Args:
    package: its full name, `__name__` in its `__init__`.
    path: its `__path__`.
    apart: packages in it that offer their layers only themselves, under names
      that others have too.

  Raises:
    ImportError: two modules define the same name.
  """
  found = {}
  for info in pkgutil.walk_packages(path, f'{package}.'):
    module = importlib.import_module(info.name)
    if any(f'{info.name}.'.startswith(f'{package}.{x}.') for x in apart):
      continue
    for name, value in vars(module).items():
      if not _is_public_layer(name, value, info.name):
        continue
      if name in found:
        raise ImportError(
          f'{name} is defined in {found[name].__module__} and {info.name};'
          ' expected names of layers to be unique'
        )
      found[name] = value
  return dict(sorted(found.items()))


def _is_public_layer(name: str, value: object, module: str) -> bool:
  return (
    isinstance(value, type)
    and issubclass(value, nn.Module | enum.Enum)
    and value.__module__ == module
    and not name.startswith('_')
  )
