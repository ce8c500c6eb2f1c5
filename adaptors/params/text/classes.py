"""Finds the classes and functions named in a text, in allowed modules only.

The functions and classes that a text names are called when the Params are used.
Therefore a module must be in an allowed package, and must itself define the
class or function. Nothing else is imported.
"""

import enum
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

from google.protobuf import message

from adaptors.lingvo_registry import lookup, mounts
from adaptors.params.text import nodes
from pax_compat import errors

# It contains the mounted params modules, `lingvo.tasks.<task>.params`.
DEFAULT_PACKAGES = ('lingvo',)


class NotFoundError(Exception):
  """A name cannot be used; the message says why."""


class Finder:
  """Looks up `module/name`."""

  def __init__(self, packages: Iterable[str] = ()):
    """Creates a finder.

    Args:
      packages: full names of packages or modules allowed in addition to
        Lingvo's.
    """
    self._packages = (*DEFAULT_PACKAGES, *packages)
    self._modules: dict[str, types.ModuleType | NotFoundError] = {}
    mounts.mount_entry_points()

  def find(self, type_name: nodes.TypeName) -> Any:
    """Returns a class or function.

    Raises:
      NotFoundError: its module is not allowed, is missing or fails, or does not
        define it.
    """
    module = self._module(type_name.module)
    known = {
      name: value
      for name, value in vars(module).items()
      if isinstance(value, (type, types.FunctionType))
      and inspect.getmodule(value) is module
    }
    if type_name.name not in known:
      raise NotFoundError(
        f'{type_name.module} defines no class or function called'
        f' {type_name.name!r}' + errors.did_you_mean(type_name.name, known)
      )
    return known[type_name.name]

  def find_class(self, type_name: nodes.TypeName, base: type) -> type:
    """Returns a subclass of `base`; see `find`."""
    cls = self.find(type_name)
    if not (isinstance(cls, type) and issubclass(cls, base)):
      raise NotFoundError(f'{type_name} is not a subclass of {base.__name__}')
    return cls

  def find_enum(self, type_name: nodes.TypeName) -> type[enum.Enum]:
    """Returns an enum class; see `find`."""
    return self.find_class(type_name, enum.Enum)

  def find_message(self, type_name: nodes.TypeName) -> type[message.Message]:
    """Returns a proto class; its module may be generated code; see `find`."""
    module = self._module(type_name.module)
    cls = getattr(module, type_name.name, None)
    if not (isinstance(cls, type) and issubclass(cls, message.Message)):
      raise NotFoundError(f'{type_name} is not a proto class')
    return cls

  def _module(self, name: str) -> types.ModuleType:
    if name not in self._modules:
      try:
        self._modules[name] = self._import(name)
      except NotFoundError as error:
        self._modules[name] = error
    found = self._modules[name]
    if isinstance(found, NotFoundError):
      raise found
    return found

  def _import(self, name: str) -> types.ModuleType:
    if not any(f'{name}.'.startswith(f'{p}.') for p in self._packages):
      raise NotFoundError(
        f'{name!r} is not in the allowed packages'
        f' ({", ".join(self._packages)}); allow its package if you trust the'
        ' text'
      )
    try:
      lookup.import_module(name)
    except errors.UserError as error:
      raise NotFoundError(str(error)) from error
    return sys.modules[name]
