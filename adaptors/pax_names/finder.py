"""The finder of `praxis` and `paxml`, whose modules hold names of ours.

Each module is a package, so that a name that is asked of it by `from module
import name` comes to this finder if it is missing: the error then says what to
use instead.
"""

import difflib
import importlib
import importlib.abc
import importlib.machinery
import pathlib
import re
import sys
import threading
import types
from typing import Any

from absl import flags

from adaptors import lingvo_runtime
from adaptors.pax_names import left_out, lingvo_maps, table
from pax_compat import errors
from pax_compat.experiments import entry_points, native_params
from pax_compat.layer_core import atten_probs

# Modules of other distributions: `paxml.tasks.lm.model_params = my.module`.
GROUP = 'pax_compat.pax_names'

_TOPS = ('praxis', 'paxml')
_LAYERS = 'praxis.layers'
_TASKS = 'paxml.tasks'
_BASE_LAYER = 'praxis.base_layer'
# Packages of paxml that a mounted checkout replaces.
_OF_CHECKOUTS = ('tasks', 'contrib')
# Modules of these packages have the names of `table.ALIASES`.
_WITH_ALIASES = ('praxis.', 'paxml.')
_NESTED_MAP = 'praxis.py_utils.NestedMap'
_TENSORSTORE = 'pmap_use_tensorstore'
_lock = threading.RLock()


def install(
  *, return_atten_probs: bool = False, pax_summary_keys: bool = False
) -> None:
  """Makes `praxis` and `paxml` importable. Later calls do nothing more.

  Other packages of these names that are installed, but not imported yet, are
  no longer found.

  Args:
    return_atten_probs: whether attention layers of this process return their
      weights by default, for code that reads them. As in Pax, that takes the
      time and memory of an array [B, N, T, S].
    pax_summary_keys: whether keys of the collection `summaries` end with the
      type, as in Pax: `loss_scalar`, and values are arrays.

  Raises:
    UserError: the real `praxis` or `paxml` is imported already.
  """
  if return_atten_probs:
    atten_probs.return_by_default()
  if pax_summary_keys:
    summaries = importlib.import_module('pax_compat.layer_core.summaries')
    summaries.use_pax_keys()
  with _lock:
    if is_installed():
      return
    for top in _TOPS:
      real = sys.modules.get(top)
      if real is not None and not isinstance(real, PaxModule):
        raise errors.UserError(
          f'{top} is imported already, from {_place(real)}; the names of ours'
          ' can be installed only before that, in a process of their own'
        )
    _declare_flags()
    sys.meta_path.insert(0, _finder)
    importlib.invalidate_caches()
    lingvo_maps.register()


def _declare_flags():
  """Declares the flags that Pax's code sets where no command has parsed any."""
  if _TENSORSTORE not in flags.FLAGS:
    flags.DEFINE_bool(
      _TENSORSTORE,
      None,
      'No effect: checkpoints are always written with TensorStore.',
      allow_override=True,
    )


def is_installed() -> bool:
  """Whether `install` was called."""
  return _finder in sys.meta_path


def mount(root: pathlib.Path) -> None:
  """Takes experiments, and modules that Pax lacks, from a checkout of paxml.

  Args:
    root: the folder that contains `paxml/tasks`.

  Raises:
    UserError: another checkout is mounted, or `paxml.tasks` is in use.
  """
  with _lock:
    if _finder.root not in (None, root):
      raise errors.UserError(
        f'the paxml checkout {_finder.root} is already mounted; a process can'
        f' use only one, and {root} is another'
      )
    if _finder.root is None and 'paxml.tasks' in sys.modules:
      raise errors.UserError(
        'paxml.tasks is imported already; expected --pax_source, or `mount`,'
        ' before that'
      )
    _finder.root = root


def mounted() -> pathlib.Path | None:
  """Returns the mounted checkout, None if there is none."""
  return _finder.root


def _place(module: types.ModuleType) -> str:
  return str(getattr(module, '__file__', None) or list(module.__path__))


class PaxModule(types.ModuleType):
  """A module of Pax's layout that holds names of ours."""

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(f'{self.__name__} has no attribute {name!r}')
    full = f'{self.__name__}.{name}'
    if full == _NESTED_MAP:
      return _nested_map()  # Not kept: it depends on the caller.
    value = _named(full)
    if value is _ABSENT and _finder.has(full):
      return importlib.import_module(full)
    if value is _ABSENT:
      for module in _ours(self.__name__):
        value = getattr(module, name, _ABSENT)
        if value is not _ABSENT and not isinstance(value, types.ModuleType):
          break
      else:
        value = self._from_another(name)
    setattr(self, name, value)
    return value

  def _from_another(self, name: str) -> Any:
    """Returns what Pax's module imports from another one of Pax."""
    imported = _imported(self.__name__, name)
    if imported is not None:
      return importlib.import_module(imported)
    if name in table.ALIASES and self.__name__.startswith(_WITH_ALIASES):
      return getattr(importlib.import_module(_BASE_LAYER), name)
    full = f'{self.__name__}.{name}'
    raise AttributeError(absent(full, dir(self)), name=name, obj=self)

  def __dir__(self):
    names = _children(self.__name__)
    for module in _ours(self.__name__):
      public = getattr(module, '__all__', None) or vars(module)
      names |= {
        n
        for n in public
        if not n.startswith('_')
        and not isinstance(getattr(module, n), types.ModuleType)
      }
    return sorted(names)


def _nested_map() -> type:
  """Returns the class of NestedMaps: Lingvo's in code of an input generator."""
  if lingvo_runtime.is_building_input():
    return lingvo_runtime.module('lingvo.core.nested_map').NestedMap
  return _module('pax_compat.nested_map').NestedMap


class _Absent:
  """The value of a name that is not here."""


_ABSENT = _Absent()


def _named(full: str) -> Any:
  """Returns the value of a name with a row of its own."""
  if full not in table.NAMES:
    return _ABSENT
  module, _, name = table.NAMES[full].partition(':')
  return getattr(_module(module), name)


def _imported(module: str, name: str) -> str | None:
  """Returns the module of a name that Pax's module imports, or None."""
  package, top = module.rpartition('.')[0], module.partition('.')[0]
  for parent in (package, top):
    found = f'{parent}.{name}'
    if found in table.KNOWN and found != module:
      return found
  return None


def _children(module: str) -> set[str]:
  """Returns the modules within one of Pax, and its names with a row."""
  parts = (n.rpartition('.') for n in (*table.KNOWN, *table.NAMES))
  return {name for parent, _, name in parts if parent == module}


def absent(full: str, known: list[str]) -> str:
  """Returns the message for a module or name of Pax that is not here."""
  module, _, name = full.rpartition('.')
  near = difflib.get_close_matches(name, known, 3, cutoff=0.75)
  reason = left_out.REASONS.get(full)
  instead = table.INSTEAD.get(full) or table.INSTEAD.get(module) or reason
  if near and not instead:
    instead = f'did you mean: {", ".join(near)}?'
  while module and not instead:
    instead = table.INSTEAD.get(module)
    module = module.rpartition('.')[0]
  if not instead:
    instead = 'docs/your_pax_code.md lists what to use instead'
  return f'{full} is not supported here; {instead}'


def _ours(name: str) -> list[types.ModuleType]:
  """Returns our modules that a module of Pax stands for."""
  if name in table.STAND_INS:
    return list(map(_module, table.STAND_INS[name]))
  top, _, rest = name.partition('.')
  if not rest:
    return []
  found = _of_distributions(name)
  found += [f'pax_compat.{rest}', *table.MODULES.get(name, ())]
  if name.startswith(f'{_LAYERS}.'):
    found.append('pax_compat.layers')
  if name.startswith(f'{_TASKS}.'):
    native = native_params.module_of(f'{rest}.X')
    found += [native] if native else []
  return [
    _module(module)
    for module in dict.fromkeys(found)
    if entry_points.find_spec(module) is not None
  ]


def _module(name: str) -> types.ModuleType:
  if name.partition('.')[0] in ('lingvo', 'seqio'):
    return lingvo_runtime.module(name)
  module = importlib.import_module(name)
  lingvo_maps.register()
  return module


def _prepare(origin: str | None):
  """Loads what a module of the checkout imports of TensorFlow's packages."""
  text = pathlib.Path(origin).read_text('utf-8') if origin else ''
  found = set(re.findall(r'^\s*(?:from|import) (\w+)', text, re.MULTILINE))
  if 'lingvo' in found:
    lingvo_runtime.load()
    lingvo_maps.register()
  if found & {'seqio', 't5'}:
    lingvo_runtime.seqio()
  elif 'tensorflow' in found:
    lingvo_runtime.tensorflow()


def _is_stand_in(name: str) -> bool:
  """Whether a module stands in for one that is not installed."""
  top = name.partition('.')[0]
  return (
    name in table.STAND_INS
    and importlib.machinery.PathFinder.find_spec(top) is None
  )


def _of_distributions(name: str) -> list[str]:
  entries = entry_points.of_group(GROUP)
  return [entry.value for entry in entries if entry.name == name]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds and loads the modules.

  Attributes:
    root: the mounted checkout, None if there is none.
  """

  def __init__(self):
    self.root: pathlib.Path | None = None

  def find_spec(self, fullname, path=None, target=None):
    """Returns the spec of a module of Pax; None for all others.

    Raises:
      ImportError: a module or name of Pax that is not here.
    """
    if _is_stand_in(fullname):
      return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
    if fullname.partition('.')[0] not in _TOPS:
      return None
    spec = self._in_checkout(fullname)
    if spec is not None:
      _prepare(spec.origin)
      return spec
    if self.has(fullname):
      return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
    parent = sys.modules.get(fullname.rpartition('.')[0])
    known = dir(parent) if isinstance(parent, PaxModule) else []
    if not isinstance(parent, PaxModule):
      return None  # A module of the checkout: Python's own message.
    raise ImportError(absent(fullname, known), name=fullname)

  def has(self, name: str) -> bool:
    """Whether a module of Pax can be imported."""
    if (
      name in table.KNOWN
      or _is_stand_in(name)
      or self._in_checkout(name) is not None
    ):
      return True
    if name.startswith(f'{_LAYERS}.'):
      rest = name.removeprefix('praxis.')
      return _is_module_of_layers(rest)
    if name.startswith(f'{_TASKS}.'):
      native = native_params.module_of(name.removeprefix('paxml.') + '.X')
      return bool(native and entry_points.find_spec(native))
    return bool(_of_distributions(name))

  def _in_checkout(self, name: str) -> importlib.machinery.ModuleSpec | None:
    if self.root is None or not _may_be_in_checkout(name):
      return None
    folder = self.root.joinpath(*name.split('.'))
    spec = importlib.machinery.PathFinder.find_spec(name, [str(folder.parent)])
    if spec is not None and spec.origin is None:  # Without `__init__`.
      spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
      spec.submodule_search_locations = [str(folder)]
    return spec

  def create_module(self, spec):
    """Returns an empty module; its names are looked up when they are read."""
    return PaxModule(spec.name)

  def exec_module(self, module):
    """Does nothing."""


def _may_be_in_checkout(name: str) -> bool:
  """Whether a module is taken from the mounted checkout, if that has it.

  Those are experiments, `paxml.contrib`, and what Pax itself does not have,
  such as `paxml.utils` in a fork.
  """
  top, *rest = name.split('.')
  if top != 'paxml' or not rest:
    return False
  if rest[0] in _OF_CHECKOUTS:
    return True
  return len(rest) == 1 and name not in table.KNOWN


def _is_module_of_layers(rest: str) -> bool:
  """Whether `layers.a` is a module of ours, and not a class in `layers`."""
  return entry_points.find_spec(f'pax_compat.{rest}') is not None


_finder = _Finder()
