"""Which function translates which Lingvo class."""

import collections
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Mapping

from absl import logging

from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat import config as config_lib
from pax_compat import errors

# What is said of a class of which nothing is known.
UNKNOWN = 'nobody has translated this class'

# Those for any use, then those that were registered as fallbacks.
_translators = collections.ChainMap[str, Callable]({}, {})


@dataclasses.dataclass(frozen=True)
class Translated:
  """A Lingvo layer in JAX.

  Attributes:
    config: builds the JAX layer.
    variables: which of its variables are which of Lingvo's.
    children: the paths of layers inside of it, such as `layers_0.main`, by
      their paths in Lingvo; of layers that a user composes only.
  """

  config: config_lib.Config
  variables: VariableMap = VariableMap()
  children: Mapping[str, str] = dataclasses.field(default_factory=dict)


def translates(dotted_path: str, *, fallback: bool = False):
  """Registers the decorated function for the class of that dotted path.

  The function takes a `ParamsView`; what it returns is up to the kind of class:
  `Translated` for a layer, a config for a schedule or an optimizer.

  Args:
    dotted_path: of the class.
    fallback: whether a function that is registered for the class without
      `fallback`, before or after this one, is used instead.
  """

  def register(fn):
    _translators.maps[int(fallback)][dotted_path] = fn
    return fn

  return register


def translate(view: ParamsView):
  """Translates the class of the view's Params.

  Returns:
    What the translator returns, or None where there is no translator, or a
    part has none; the view's report then says which.
  """
  load_translators()
  cls = view.params.cls
  translator = find(cls)
  if translator is None:
    view.issue('', no_translator(cls))
    return None
  view.compare_with(_translated_base(cls))
  issues_before = len(view.report.issues)
  try:
    translated = translator(view)
  except Exception as error:
    # After an issue, most errors only follow from the part that is missing. The
    # log has the traceback, in case the translator itself is wrong.
    logging.debug('translating %s: %s', class_path(cls), error, exc_info=True)
    if len(view.report.issues) == issues_before:
      view.issue('', unreadable(error))
    return None
  view.finish()
  return translated if len(view.report.issues) == issues_before else None


def unreadable(error: Exception) -> str:
  """Says why the values of some Params are of no use."""
  if isinstance(error, errors.UserError):
    return str(error)
  return (
    'its Params do not go together, or hold something of a wrong type:'
    f' {type(error).__name__}: {error} ({errors.place_of(error)})'
  )


def registered() -> Mapping[str, Callable]:
  """Returns the translators so far, by dotted paths of classes."""
  return types.MappingProxyType(_translators)


@functools.cache
def load_translators():
  """Imports the modules of this package, which register translators."""
  package = importlib.import_module(__package__)
  for module in pkgutil.walk_packages(package.__path__, f'{__package__}.'):
    importlib.import_module(module.name)


def find(
  cls: type, translators: Mapping[str, Callable] | None = None
) -> Callable | None:
  """Returns the translator of a class, or None.

  A class without one of its own has its base's if it overrides nothing but
  `Params()`: what computes differently is not its parent.

  Args:
    cls: the class.
    translators: by dotted paths of classes; None for the registered ones.
  """
  translators = _translators if translators is None else translators
  for base in cls.__mro__:
    translator = translators.get(class_path(base))
    if translator is not None:
      return translator
    if overrides(base):
      return None
  return None


def _translated_base(cls: type) -> type:
  """Returns the class whose translator is that of `cls`."""
  return next(b for b in cls.__mro__ if class_path(b) in _translators)


def no_translator(cls: type) -> str:
  """Returns why a class has no translator."""
  changed = set()
  for base in cls.__mro__:
    if class_path(base) in _translators:
      return (
        f'it is not its parent {class_path(base)}, since it overrides'
        f' {", ".join(sorted(changed))}'
      )
    changed |= overrides(base)
  return UNKNOWN


def overrides(cls: type) -> set[str]:
  """Returns the names that a class defines and that can change what it does."""
  names = {
    name
    for name in vars(cls)
    if name
    not in (
      'Params',
      '__module__',
      '__dict__',
      '__weakref__',
      '__doc__',
      '__qualname__',
      '__annotations__',
      '__static_attributes__',
      '__firstlineno__',
      '__abstractmethods__',
      '_abc_impl',
    )
  }
  if _is_trivial(vars(cls).get('__init__')):
    names.discard('__init__')
  return names


def _is_trivial(init: Callable | None) -> bool:
  """Whether an `__init__` was put there by Lingvo's metaclass.

  It gives every layer one, and wraps that one and any other in a function that
  has it as the variable `func`.
  """
  if not inspect.isfunction(init):
    return False
  wrapped = inspect.getclosurevars(init).nonlocals.get('func')
  return getattr(wrapped, '__qualname__', '').endswith('TrivialInit')
