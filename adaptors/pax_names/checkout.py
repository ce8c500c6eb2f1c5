"""The experiments of a paxml checkout: `paxml/tasks/**`, `paxml/contrib/**`.

Only code below a folder that the user names is imported.
"""

import importlib
import os
import pathlib
import types

from adaptors.lingvo_registry import import_errors
from adaptors.pax_names import finder
from pax_compat import base_experiment, errors
from pax_compat.experiments import source_scan

_TASKS = 'paxml.tasks'
_CONTRIB = 'paxml.contrib'


def mount(path: str | os.PathLike) -> pathlib.Path:
  """Makes the experiments of a checkout importable as `paxml.tasks.**`.

  Args:
    path: the checkout's root, which contains `paxml/tasks`.

  Returns:
    The root.

  Raises:
    UserError: it is not a checkout, another one is mounted, or the real
      `praxis` or `paxml` is imported.
  """
  root = pathlib.Path(path).expanduser().resolve()
  if not (root / 'paxml' / 'tasks').is_dir():
    near = [p for p in (*root.parents, root / 'paxml') if _is_checkout(p)]
    raise errors.UserError(
      f'{root} is not a source checkout of paxml; expected a folder that'
      ' contains paxml/tasks'
      + (f'; did you mean: {near[0]}?' if near else '')
      + ('' if root.is_dir() else ', and it does not exist')
    )
  finder.install()
  finder.mount(root)
  return root


def test_src_dir_path(relative_path: str) -> str:
  """Returns the path of a file in the folder `paxml` of the mounted checkout.

  Unit tests of Pax find their data by it.

  Raises:
    UserError: no checkout is mounted.
  """
  root = finder.mounted()
  if root is None:
    raise errors.UserError(
      f'test_src_dir_path({relative_path!r}): expected a checkout of paxml,'
      ' mounted by --pax_source'
    )
  return os.fspath(root / 'paxml' / relative_path)


test_src_dir_path.__test__ = False  # It is not a test itself.


def _is_checkout(folder: pathlib.Path) -> bool:
  return (folder / 'paxml' / 'tasks').is_dir()


def names(root: pathlib.Path) -> dict[str, str]:
  """Returns the registered names, each with one line of its docstring.

  Args:
    root: the root of the checkout. Its source is parsed, not imported.
  """
  modules = {
    f'{package}.{name}': path
    for package in (_TASKS, _CONTRIB)
    for name, path in source_scan.modules_in(root.joinpath(*package.split('.')))
  }
  return dict(sorted(source_scan.scan(modules, ('register',)).items()))


def experiment(name: str) -> base_experiment.BaseExperiment:
  """Returns a new instance of an experiment of the mounted checkout.

  Args:
    name: its full name, such as `paxml.tasks.lm.params.c4.Class`.

  Raises:
    UserError: its module, or an instance of it, cannot be made.
  """
  module, _, cls = name.rpartition('.')
  try:
    return getattr(import_module(module), cls)()
  except errors.UserError:
    raise
  except Exception as error:  # Code of the checkout runs here.
    raise errors.UserError(import_errors.describe_new(name, error)) from error


def import_module(name: str) -> types.ModuleType:
  """Imports a module of the checkout, or one of the user.

  Raises:
    UserError: it raises; the message has the error and its location.
  """
  try:
    return importlib.import_module(name)
  except errors.UserError:
    raise
  except Exception as error:  # Code of the checkout or the user runs here.
    raise errors.UserError(import_errors.describe(name, error, None)) from error
