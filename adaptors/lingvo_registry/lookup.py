"""Looks up registered Lingvo experiments and the modules that register them.

`lm.one_billion_wds.Model` is the class `Model` that was registered by the
module `lingvo.tasks.lm.params.one_billion_wds`, or by another one that the name
can mean (see `_modules_of`). Whether there is such a module is found out
without importing anything, so that a name of somebody else costs no time.
"""

import importlib.machinery
import importlib.util
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import mounts
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors, experiment_sources
from pax_compat.experiments import source_scan

_TASKS = 'lingvo.tasks'
_DECORATORS = ('RegisterSingleTaskModel', 'RegisterMultiTaskModel')


def find_model_params(
  name: str, options: experiment_sources.SourceOptions
) -> Any | None:
  """Returns an instance of the class that Lingvo's registry has for a name.

  Args:
    name: a registered name, such as `lm.one_billion_wds.Model`.
    options: which checkout to mount, and whether to import every module that
      the name can mean.

  Returns:
    Lingvo's `SingleTaskModelParams` or `MultiTaskModelParams`; None if there is
    no module that the name can mean.

  Raises:
    UserError: the module is there, but has no such class or cannot be imported.
  """
  mount(options)
  modules = _modules_of(name)
  if not options.of(LingvoOptions).load_everything:
    # A class that its module does not even mention is not worth an import.
    modules = [m for m in modules if _mentions(m, name.rpartition('.')[2])]
  if not modules and not _is_registry_loaded():
    return None
  for module in modules:
    import_module(module)
    if name in _registry():
      break
  known = _registry()
  if name in known:
    return known[name]()
  if not modules:
    return None
  raise errors.UserError(
    f'{", ".join(modules)} registers no experiment called {name!r}'
    + errors.did_you_mean(name, known)
  )


def names(options: experiment_sources.SourceOptions) -> Mapping[str, str]:
  """Returns the names of Lingvo experiments, with their first lines.

  Reads the mounted modules' source text. With `load_everything` it imports them
  all instead, and says in a warning which of them it cannot import.
  """
  mount(options)
  mounted = mounts.params_modules()
  found = {}
  own = options.of(LingvoOptions)
  if not own.load_everything:
    found = source_scan.scan(mounted, _DECORATORS)
  if own.load_everything:
    for key in mounted:
      try:
        import_module(_module_name(key))
      except errors.UserError as error:
        logging.warning('not listed: %s', error)
  if own.load_everything or _is_registry_loaded():
    found |= {
      key: source_scan.first_line(c.__doc__) for key, c in _documented()
    }
  return found


def mount(options: experiment_sources.SourceOptions):
  """Mounts the params packages of installed packages and of the checkout."""
  mounts.mount_entry_points()
  checkout = options.of(LingvoOptions).lingvo_source
  if checkout:
    mounts.mount_checkout(checkout)


def _module_name(key: str) -> str:
  """Returns the module of a key of `params_modules`, such as `lm.words`."""
  task, _, rest = key.partition('.')
  return f'{_TASKS}.{task}.params.{rest}'


def _is_registry_loaded() -> bool:
  """Whether a module was imported that may have registered something."""
  return 'lingvo.model_registry' in sys.modules


def _registry() -> dict[str, type]:
  # The function of the module itself imports all of Lingvo's own params.
  helper = lingvo_runtime.module('lingvo.model_registry')._ModelRegistryHelper
  return helper.GetAllRegisteredClasses() or {}


def _documented() -> Iterator[tuple[str, type]]:
  """Yields registered names with the classes that users wrote."""
  for key, wrapper in _registry().items():
    # Lingvo registers a subclass of its own, which has a docstring too.
    yield key, wrapper.__mro__[1]


def _modules_of(name: str) -> list[str]:
  """Returns the existing modules that a registered name can mean.

  For `a.b.C` these are `a.b`, the same with `params` put in anywhere, and all
  of them below `lingvo.tasks`. Of modules that are not in a `params` package of
  Lingvo's tasks only those count that speak of Lingvo's registry.
  """
  path = name.split('.')[:-1]
  if not all(part.isidentifier() for part in path):
    return []
  spelled = ['.'.join(path)] if path else []
  for i in range(1, len(path) + 1):
    spelled.append('.'.join([*path[:i], 'params', *path[i:]]))
  candidates = spelled + [f'{_TASKS}.{module}' for module in spelled]
  mounted = {_module_name(key) for key in mounts.params_modules()}
  return [m for m in candidates if m in mounted or _registers(m)]


def _registers(module: str) -> bool:
  """Whether a module exists and its source text has to do with the registry."""
  spec = _find_spec(module)
  text = _text_of(spec) if spec else b''
  return b'model_registry' in text or any(
    d.encode() in text for d in _DECORATORS
  )


def _mentions(module: str, class_name: str) -> bool:
  """Whether a module's source text has a word, or cannot be read."""
  spec = _find_spec(module)
  text = _text_of(spec) if spec else b''
  word = rf'\b{re.escape(class_name)}\b'
  return not text or re.search(word.encode(), text) is not None


def _text_of(spec: importlib.machinery.ModuleSpec) -> bytes:
  """Returns the source text of a module, nothing where there is none."""
  path = pathlib.Path(spec.origin or '')
  return path.read_bytes() if path.suffix == '.py' and path.is_file() else b''


def _find_spec(module: str) -> importlib.machinery.ModuleSpec | None:
  """Finds a module without importing the packages that it is in."""
  *packages, last = module.split('.')
  path, full = None, ''
  for package in packages:
    full = f'{full}.{package}' if full else package
    try:
      spec = _find_in(full, path)
      path = spec.submodule_search_locations if spec else None
    except KeyError:
      # Finders want the parents of a package without `__init__` imported.
      folders = [pathlib.Path(folder, package) for folder in path or ()]
      path = [str(folder) for folder in folders if folder.is_dir()]
    if not path:
      return None
  try:
    return _find_in(f'{full}.{last}' if full else last, path)
  except KeyError:
    return None


def _find_in(full: str, path: Any) -> importlib.machinery.ModuleSpec | None:
  """Asks the finders for a module of a package with the given folders."""
  for finder in sys.meta_path:
    find_spec = getattr(finder, 'find_spec', None)
    spec = find_spec and find_spec(full, path)
    if spec:
      return spec
  return None


def claims(module: str) -> bool:
  """Whether a module may need Lingvo, and so the gate, to be imported.

  A module whose source text speaks of the native registry, and not of Lingvo,
  does not. Of others, packages for example, the text does not tell.
  """
  spec = _find_spec(module)
  if spec is None or importlib.util.find_spec('lingvo') is None:
    return False
  text = _text_of(spec)
  return b'lingvo' in text or b'experiment_registry' not in text


def import_module(module: str):
  """Imports a module through the gate.

  Raises:
    UserError: something goes wrong in it; the message says what and where.
  """
  try:
    lingvo_runtime.module(module)
  except errors.UserError:
    raise
  except Exception as error:
    spec = _find_spec(module)
    place = errors.place_of(error, spec and spec.origin)
    raise errors.UserError(
      f'{module} cannot be imported: {place}: {type(error).__name__}: {error}'
    ) from error
