"""Looks up registered Lingvo experiments and the modules that register them.

`lm.one_billion_wds.Model` is the class `Model` registered by the module
`lingvo.tasks.lm.params.one_billion_wds`, or by another one that the name can
mean (see `_modules_of`). Whether such a module exists is checked without
importing anything, so that names of other sources cost no time.
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
from adaptors.lingvo_registry import import_errors, mounts
from adaptors.lingvo_registry.options import LingvoOptions
from adaptors.stand_ins import trainer_flags
from pax_compat import errors, experiment_sources
from pax_compat.experiments import source_scan

_TASKS = 'lingvo.tasks'
_DECORATORS = ('RegisterSingleTaskModel', 'RegisterMultiTaskModel')


def find_model_params(
  name: str, options: experiment_sources.SourceOptions
) -> Any | None:
  """Returns an instance of the class that is registered in Lingvo for a name.

  Args:
    name: a registered name, such as `lm.one_billion_wds.Model`.
    options: which checkout to mount, and whether to import every module that
      the name can mean.

  Returns:
    Lingvo's `SingleTaskModelParams` or `MultiTaskModelParams`; None if no
    module that the name can mean exists.

  Raises:
    UserError: the module exists, but lacks the class or cannot be imported;
      or an instance of the class cannot be made.
  """
  mount(options)
  modules = _modules_of(name)
  if not options.of(LingvoOptions).load_everything:
    # A module that does not mention the class is not imported.
    modules = [m for m in modules if _mentions(m, name.rpartition('.')[2])]
  if not modules and not _is_registry_loaded():
    return None
  for module in modules:
    import_module(module)
    if name in _registry():
      break
  known = _registry()
  if name in known:
    return _instance(name, known[name])
  if not modules:
    return None
  raise errors.UserError(
    f'{", ".join(modules)} registers no experiment called {name!r}'
    + errors.did_you_mean(name, known)
  )


def _instance(name: str, cls: type) -> Any:
  """Returns an instance of a registered class, whose `__init__` may fail."""
  try:
    return cls()
  except errors.UserError:
    raise
  except Exception as error:  # User code runs here.
    raise errors.UserError(import_errors.describe_new(name, error)) from error


def names(options: experiment_sources.SourceOptions) -> Mapping[str, str]:
  """Returns the names of Lingvo experiments, with their first lines.

  Reads the mounted modules' source text. With `load_everything` it imports them
  all instead, and logs a warning for each that it cannot import.
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
  """Mounts the params packages of installed packages and of the checkout.

  Modules that read flags of the checkout's trainer find them.
  """
  mounts.mount_entry_points()
  checkout = options.of(LingvoOptions).lingvo_source
  if checkout:
    mounts.mount_checkout(checkout)
    trainer_flags.define(mounts.checkout() / 'lingvo')


def _module_name(key: str) -> str:
  """Returns the module of a key of `params_modules`, such as `lm.words`."""
  task, _, rest = key.partition('.')
  return f'{_TASKS}.{task}.params.{rest}'


def _is_registry_loaded() -> bool:
  """Whether a module that may have registered something is imported."""
  return 'lingvo.model_registry' in sys.modules


def _registry() -> dict[str, type]:
  # The module's public function imports all of Lingvo's own params.
  helper = lingvo_runtime.module('lingvo.model_registry')._ModelRegistryHelper
  return helper.GetAllRegisteredClasses() or {}


def _documented() -> Iterator[tuple[str, type]]:
  """Yields registered names with the classes written by users."""
  for key, wrapper in _registry().items():
    # Lingvo registers a subclass, which has another docstring.
    yield key, wrapper.__mro__[1]


def _modules_of(name: str) -> list[str]:
  """Returns the existing modules that a registered name can mean.

  For `a.b.C` these are `a.b`, the same with `params` inserted anywhere, and all
  of them below `lingvo.tasks`. Modules that are not in a `params` package of
  Lingvo's tasks must mention Lingvo's registry in their source.
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
  """Whether a module exists and its source mentions Lingvo's registry."""
  spec = _find_spec(module)
  text = _text_of(spec) if spec else b''
  return b'model_registry' in text or any(
    d.encode() in text for d in _DECORATORS
  )


def _mentions(module: str, class_name: str) -> bool:
  """Whether a module's source contains a name, or cannot be read."""
  spec = _find_spec(module)
  text = _text_of(spec) if spec else b''
  word = rf'\b{re.escape(class_name)}\b'
  return not text or re.search(word.encode(), text) is not None


def _text_of(spec: importlib.machinery.ModuleSpec) -> bytes:
  """Returns the source of a module; empty if there is none."""
  path = pathlib.Path(spec.origin or '')
  return path.read_bytes() if path.suffix == '.py' and path.is_file() else b''


def _find_spec(module: str) -> importlib.machinery.ModuleSpec | None:
  """Finds a module without importing its packages."""
  *packages, last = module.split('.')
  path, full = None, ''
  for package in packages:
    full = f'{full}.{package}' if full else package
    try:
      spec = _find_in(full, path)
      path = spec.submodule_search_locations if spec else None
    except KeyError:
      # Finders need the imported parents of a package without `__init__`.
      folders = [pathlib.Path(folder, package) for folder in path or ()]
      path = [str(folder) for folder in folders if folder.is_dir()]
    if not path:
      return None
  try:
    return _find_in(f'{full}.{last}' if full else last, path)
  except KeyError:
    return None


def _find_in(full: str, path: Any) -> importlib.machinery.ModuleSpec | None:
  """Returns the finders' spec of a module in a package's folders."""
  for finder in sys.meta_path:
    find_spec = getattr(finder, 'find_spec', None)
    spec = find_spec and find_spec(full, path)
    if spec:
      return spec
  return None


def claims(module: str) -> bool:
  """Whether a module may import Lingvo, and so needs the gate.

  A module whose source mentions the native registry and not Lingvo does not.
  For others, such as packages, the source is not conclusive.
  """
  spec = _find_spec(module)
  if spec is None or importlib.util.find_spec('lingvo') is None:
    return False
  text = _text_of(spec)
  return b'lingvo' in text or b'experiment_registry' not in text


def import_module(module: str):
  """Imports a module through the gate.

  Raises:
    UserError: it raises an error; the message has the error, its location, and
      the files that import one another up to it.
  """
  try:
    lingvo_runtime.module(module)
  except errors.UserError:
    raise
  except Exception as error:
    spec = _find_spec(module)
    raise errors.UserError(
      import_errors.describe(module, error, spec and spec.origin)
    ) from error
