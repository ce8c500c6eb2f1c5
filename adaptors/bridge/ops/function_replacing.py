"""Replaces functions of TensorFlow and Lingvo within a context.

A function has many names: `tf.debugging.check_numerics` is the same object in a
dozen modules. It is replaced in every module, and restored when the last
context that replaces it ends.

Threads: modules are shared by the process, but a replacement is called only in
the thread that entered the context; other threads call the original. Contexts
may be nested; the innermost replacement of a function is used.
"""

import contextlib
import dataclasses
import functools
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping


@dataclasses.dataclass
class _Installed:
  """A function that is currently replaced.

  Attributes:
    original: the function.
    attributes: (module, name) pairs that refer to it.
    num_contexts: number of contexts that replace it.
  """

  original: Callable
  attributes: list
  num_contexts: int = 0


_lock = threading.Lock()
_installed: dict[str, _Installed] = {}
_active = threading.local()


@contextlib.contextmanager
def replaced(replacements: Mapping[str, Callable]) -> Iterator[None]:
  """Replaces functions in this thread.

  Args:
    replacements: functions by the original's full name, such as
      `tensorflow.python.ops.gen_array_ops.inplace_update`. They are called with
      the original, then its arguments.
  """
  tables = _tables()
  _install(replacements)
  tables.append(replacements)
  try:
    yield
  finally:
    # By identity: generators may end contexts in a different order.
    index = max(i for i, t in enumerate(tables) if t is replacements)
    del tables[index]
    _uninstall(replacements)


def _tables() -> list[Mapping[str, Callable]]:
  """Returns this thread's replacements, the innermost context last."""
  if not hasattr(_active, 'tables'):
    _active.tables = []
  return _active.tables


def _install(names: Iterable[str]) -> None:
  """Replaces each function by one that dispatches by `_tables`."""
  with _lock:
    added = {
      name: _Installed(pkgutil.resolve_name(name), [])
      for name in names
      if name not in _installed
    }
    new = {id(function.original): function for function in added.values()}
    for module in _modules():
      for attribute, value in list(vars(module).items()):
        if id(value) in new:
          new[id(value)].attributes.append((module, attribute))
    _installed.update(added)
    for name in names:
      function = _installed[name]
      function.num_contexts += 1
      if function.num_contexts == 1:
        _put(function, _dispatching(name, function.original))


def _modules() -> list[types.ModuleType]:
  """Returns all modules, with those that are only attributes of others."""
  modules = {
    id(module): module
    for module in list(sys.modules.values())
    if isinstance(module, types.ModuleType)
  }
  for module in list(modules.values()):
    for value in list(vars(module).values()):
      if isinstance(value, types.ModuleType):
        modules.setdefault(id(value), value)
  return list(modules.values())


def _uninstall(names: Iterable[str]) -> None:
  with _lock:
    for name in names:
      function = _installed[name]
      function.num_contexts -= 1
      if not function.num_contexts:
        _put(function, function.original)
        del _installed[name]


def _put(function: _Installed, value: Callable) -> None:
  for module, attribute in function.attributes:
    setattr(module, attribute, value)


def _dispatching(name: str, original: Callable) -> Callable:
  """Returns a function that calls this thread's replacement or the original."""

  @functools.wraps(original)
  def call(*args, **kwargs):
    for table in reversed(_tables()):
      if name in table:
        return table[name](original, *args, **kwargs)
    return original(*args, **kwargs)

  return call
