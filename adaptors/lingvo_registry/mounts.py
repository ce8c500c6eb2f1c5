"""Makes `lingvo.tasks.<task>.params` importable from other folders.

Lingvo's wheel does not contain the `params` packages with the experiments. They
come from a source checkout of Lingvo and from installed packages that list
theirs in the entry-point group `pax_compat.lingvo_params`:

    'pax_compat.lingvo_params': ['lm = my_package.lm_params']

Each mounted `params` package is the union of its task's folders. Other modules
of Lingvo come from the installation; those that it lacks, such as the task
modules of a fork, come from the checkout, and so do functions and classes that
its modules lack (see `stand_ins.older_names`). Nothing here imports Lingvo,
TensorFlow or the mounted modules.
"""

import importlib.abc
import importlib.machinery
import os
import pathlib
import sys
import threading

from absl import logging

from adaptors.stand_ins import older_names
from pax_compat import errors
from pax_compat.experiments import entry_points, source_scan

GROUP = 'pax_compat.lingvo_params'

_LINGVO, _TASKS = 'lingvo', 'lingvo.tasks'

_lock = threading.RLock()


def mount_checkout(path: str | os.PathLike) -> None:
  """Mounts the `params` packages of a source checkout of Lingvo.

  Modules that the installed Lingvo does not have are mounted as well, complete
  tasks included, and its modules find functions and classes that only the
  checkout has. The checkout's `params` precede all other folders.

  Args:
    path: the checkout's root, which contains `lingvo/tasks`.

  Raises:
    UserError: it lacks the package, or another checkout is mounted.
  """
  root = pathlib.Path(path).expanduser().resolve()
  folders = sorted(root.glob('lingvo/tasks/*/params/'))
  if not folders:
    raise errors.UserError(_not_a_checkout(root))
  with _lock:
    if _finder.checkout not in (None, root):
      raise errors.UserError(
        f'the Lingvo checkout {_finder.checkout} is already mounted; a process'
        f' can use only one, and {root} is another'
      )
    if _finder.checkout is None:
      _finder.checkout = root
      for folder in folders:
        _finder.add(folder.parent.name, folder, first=True)
      sys.meta_path.append(_Missing(root))
      older_names.use_checkout(root)
      _log_changed(root)


def checkout() -> pathlib.Path | None:
  """Returns the root of the mounted checkout, or None."""
  return _finder.checkout


def mount_entry_points() -> None:
  """Mounts the packages in the entry points of installed distributions.

  Raises:
    UserError: an entry point names a package that does not exist.
  """
  with _lock:
    for entry, folders in entry_points.packages(GROUP):
      for folder in folders:
        _finder.add(entry.name, folder)


def params_modules() -> dict[str, pathlib.Path]:
  """Returns the mounted modules that may register experiments, unimported.

  Returns:
    Source files by prefix of the registered names, such as
    `lm.one_billion_wds` for `lm.one_billion_wds.Model`; sorted. Tests and
    `__init__` files are left out.
  """
  with _lock:
    modules = {}
    for task, folders in _finder.folders.items():
      for folder in folders:
        for name, path in source_scan.modules_in(pathlib.Path(folder)):
          modules.setdefault(f'{task}.{name}', path)
  return dict(sorted(modules.items()))


class _Finder(importlib.abc.MetaPathFinder):
  """Finds the mounted packages, and the tasks that are only mounted.

  Attributes:
    checkout: the root of the mounted checkout.
    folders: the folders of each task's `params` by priority. The lists are the
      `__path__` of the imported packages, so later folders are included.
  """

  def __init__(self):
    self.checkout: pathlib.Path | None = None
    self.folders: dict[str, list[str]] = {}

  def add(self, task: str, folder: pathlib.Path, *, first: bool = False):
    """Adds a folder to a task's `params`; logs modules that are shadowed."""
    if task not in self.folders:
      self.folders[task] = []
      installed = _installed_task(task)
      if installed and (installed / 'params').is_dir():
        self.folders[task].append(str(installed / 'params'))
    folders = self.folders[task]
    if str(folder) in folders:
      return
    new = dict(source_scan.modules_in(folder))
    for other in folders:
      for name, path in source_scan.modules_in(pathlib.Path(other)):
        if name in new:
          used, unused = (new[name], path) if first else (path, new[name])
          logging.info('%s.%s is %s; not %s', task, name, used, unused)
    folders.insert(0 if first else len(folders), str(folder))
    if self not in sys.meta_path:
      # Before the usual finders, which use the first `params` only.
      sys.meta_path.insert(0, self)
    importlib.invalidate_caches()

  def find_spec(self, fullname, path=None, target=None):
    """Returns the spec of a mounted package; None for all other modules."""
    if not fullname.startswith(_TASKS + '.'):
      return None
    task, _, rest = fullname.removeprefix(_TASKS + '.').partition('.')
    if task not in self.folders:
      return None
    if rest == 'params':
      return _package(fullname, self.folders[task])
    if rest or _installed_task(task):
      return None
    if self.checkout:
      tasks = self.checkout.joinpath(*_TASKS.split('.'))
      spec = importlib.machinery.PathFinder.find_spec(fullname, [str(tasks)])
      if spec:
        return spec
    return _package(fullname, [])


class _Missing(importlib.abc.MetaPathFinder):
  """Finds the modules of Lingvo that only the checkout has.

  It is the last finder, so that installed modules come first.
  """

  def __init__(self, root: pathlib.Path):
    self._root = root
    self._found: set[str] = set()

  def find_spec(self, fullname, path=None, target=None):
    """Returns the spec of a module of the checkout; None for all others."""
    package, _, name = fullname.rpartition('.')
    if package.partition('.')[0] != _LINGVO:
      return None
    folder = self._root.joinpath(*package.split('.'))
    spec = importlib.machinery.PathFinder.find_spec(fullname, [str(folder)])
    if spec is None:
      return None
    if spec.origin is None:  # A folder without `__init__`.
      if not any((folder / name).glob('**/*.py')):
        return None
      spec = _package(fullname, [str(folder / name)])
    if fullname not in self._found:
      self._found.add(fullname)
      logging.info('%s is in the checkout only: %s', fullname, folder / name)
    return spec


_finder = _Finder()


def _log_changed(root: pathlib.Path):
  """Logs the modules of the checkout that differ from those that are used."""
  spec = entry_points.find_spec(_LINGVO)
  changed = []
  for location in (spec and spec.submodule_search_locations) or ():
    for path in sorted((root / _LINGVO).glob('tasks/**/*.py')):
      own = path.relative_to(root / _LINGVO)
      used = pathlib.Path(location, own)
      if used.is_file() and used.read_bytes() != path.read_bytes():
        changed.append(str(own))
  if changed:
    logging.info(
      'the installed Lingvo is used for these modules, from which those of %s'
      ' differ: %s',
      root,
      ', '.join(changed),
    )


def _package(name: str, folders: list[str]) -> importlib.machinery.ModuleSpec:
  """Returns the spec of a namespace package over the given folders."""
  spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
  spec.submodule_search_locations = folders
  return spec


def _installed_task(task: str) -> pathlib.Path | None:
  """Returns the folder of a task in the installed Lingvo, or None."""
  spec = entry_points.find_spec(f'{_TASKS}.{task}')
  locations = spec and spec.submodule_search_locations
  return pathlib.Path(next(iter(locations))) if locations else None


def _not_a_checkout(root: pathlib.Path) -> str:
  """Returns the message for a folder that is not a checkout."""
  text = (
    f'{root} is not a source checkout of Lingvo; expected a folder that'
    ' contains lingvo/tasks/<task>/params'
  )
  for near in (*root.parents, root / 'lingvo'):
    if any(near.glob('lingvo/tasks/*/params/')):
      return f'{text}; did you mean: {near}?'
  return text if root.is_dir() else f'{text}, and it does not exist'
