"""The registry of native experiments, and their experiment source.

The decorator `register` registers a class by the name `module.Class`. An
installed package may define another prefix for its modules (see
`native_params`). An unambiguous suffix of the name is valid too, and so is the
name without the component `params`, as in Pax: `tasks.lm.params.c4.Model` is
also `lm.c4.Model` and `c4.Model`. Pax's prefix is valid, too:
`paxml.tasks.lm.params.c4.Model`.
"""

import functools
import importlib.util
import inspect
import pathlib
from collections.abc import Collection, Sequence

from pax_compat import base_experiment, errors
from pax_compat import config as config_lib
from pax_compat.experiment_sources import SourceOptions
from pax_compat.experiments import native_options, native_params, source_scan

KIND = 'native'
OPTIONS = native_options.NativeOptions
# Names of experiments in Pax begin with its package.
_PAX_PREFIX = 'paxml.'

_experiments: dict[str, type[base_experiment.BaseExperiment]] = {}
_tags: dict[str, tuple[str, ...]] = {}


def register(
  cls: type | None = None,
  *,
  allow_overwrite: bool = False,
  tags: Sequence[str] = (),
):
  """Class decorator that registers an experiment by its name.

  Args:
    cls: the class, a `BaseExperiment`.
    allow_overwrite: whether to replace another class of the same name.
    tags: for `get_registry_tags`.

  Raises:
    UserError: the name exists already, or the class is not a `BaseExperiment`.
  """
  if cls is None:
    return functools.partial(
      register, allow_overwrite=allow_overwrite, tags=tags
    )
  if not (
    inspect.isclass(cls) and issubclass(cls, base_experiment.BaseExperiment)
  ):
    raise errors.UserError(
      f'{cls!r} cannot be registered: expected a subclass of BaseExperiment'
    )
  name = native_params.public_name(cls.__module__, cls.__qualname__)
  known = _experiments.get(name)
  if known is not None and known is not cls and not allow_overwrite:
    raise errors.UserError(f'an experiment called {name!r} exists already')
  _experiments[name] = cls
  _tags[name] = tuple(tags)
  return cls


def get(name: str) -> type[base_experiment.BaseExperiment] | None:
  """Returns a registered class by its name, or by an unambiguous end of it.

  None if it is not registered; unlike `find`, this imports nothing.

  Raises:
    InvalidConfigError: it is the end of several names.
  """
  found = matches(name.removeprefix(_PAX_PREFIX), _experiments)
  if len(found) > 1:
    raise config_lib.InvalidConfigError(_ambiguous(name, found))
  return _experiments[found.pop()] if found else None


def get_all() -> dict[str, type[base_experiment.BaseExperiment]]:
  """Returns the registered classes by full name."""
  return dict(_experiments)


def get_registry_tags(name: str) -> list[str]:
  """Returns the tags with which the class of a full name was registered."""
  return list(_tags.get(name, ()))


def claims(module: str) -> bool:
  """Returns True: any module may register native experiments."""
  del module
  return True


def find(
  name: str, options: SourceOptions
) -> base_experiment.BaseExperiment | None:
  """Returns a new instance of the experiment, or None if it is not native.

  Raises:
    UserError: the name is ambiguous, or its module does not import.
  """
  name = name.removeprefix(_PAX_PREFIX)
  module, _, cls = name.rpartition('.')
  name = native_params.public_name(module, cls) if module else name
  found = matches(name, _experiments)
  if not found and module:
    _import_if_native(module)
    found = matches(name, _experiments)
  if not found:
    found = matches(name, native_params.names())
    for module in set(map(native_params.module_of, found)):
      import_module(module)
  if len(found) > 1:
    raise errors.UserError(_ambiguous(name, found))
  if not found:
    return None
  [full] = found
  return options.of(OPTIONS).applied(_experiments[full]())


def names(options: SourceOptions) -> dict[str, str]:
  """Returns all registered names with the first lines of their docstrings."""
  del options
  return native_params.names() | {
    name: source_scan.first_line(inspect.getdoc(cls))
    for name, cls in _experiments.items()
  }


def _ambiguous(name: str, found: Collection[str]) -> str:
  return (
    f'{name!r} may be any of {", ".join(sorted(found))}; give a longer part of'
    ' the name'
  )


def _without_params(name: str) -> str:
  return '.'.join(part for part in name.split('.') if part != 'params')


def matches(name: str, known: Collection[str]) -> set[str]:
  """Returns the full names that `name` matches.

  Args:
    name: a full name, or its end, with or without the component `params`.
    known: full names.
  """
  if name in known:
    return {name}
  return {
    full
    for full in known
    if any(
      spelling == name or spelling.endswith('.' + name)
      for spelling in (full, _without_params(full))
    )
  }


def import_module(name: str):
  """Imports a module of the user.

  Raises:
    UserError: it does not exist or raises; the message has the error and its
      location.
  """
  try:
    importlib.import_module(name)
  except Exception as e:  # noqa: BLE001 (whatever the user's module raises)
    if missing := errors.missing_module(name, e):
      raise errors.UserError(missing) from e
    raise errors.UserError(
      f'the module {name!r} cannot be imported: {type(e).__name__}: {e}'
      f' ({errors.location_of(e)})'
    ) from e


def _import_if_native(module: str):
  """Imports a module if it exists and registers native experiments.

  A module is imported only if its source mentions `experiment_registry`. Other
  modules, such as those that import TensorFlow, are not.
  """
  try:
    spec = importlib.util.find_spec(module)
  except (ImportError, ValueError, AttributeError):
    return
  except Exception:  # noqa: BLE001 (a package of the user that raises)
    import_module(module.rpartition('.')[0])  # Raises a UserError.
    raise
  if spec is None or not spec.origin or not spec.origin.endswith('.py'):
    return
  if 'experiment_registry' in pathlib.Path(spec.origin).read_text('utf-8'):
    import_module(module)
