"""Which function translates which Lingvo class."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable

from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat import config as config_lib

# Modules that register translators, imported when the first one is asked for.
_TRANSLATOR_MODULES = (
  'adaptors.translate.attention',
  'adaptors.translate.embeddings',
  'adaptors.translate.layers',
  'adaptors.translate.learner_fields',
  'adaptors.translate.lm',
  'adaptors.translate.optimizers',
  'adaptors.translate.program_schedule',
  'adaptors.translate.rnn',
  'adaptors.translate.schedules',
  'adaptors.translate.softmaxes',
  'adaptors.translate.transformer',
)

_translators: dict[str, Callable] = {}


@dataclasses.dataclass(frozen=True)
class Translated:
  """A Lingvo layer in JAX.

  Attributes:
    config: builds the JAX layer.
    variables: which of its variables are which of Lingvo's.
  """

  config: config_lib.Config
  variables: VariableMap = VariableMap()


def translates(dotted_path: str):
  """Registers the decorated function for the class of that dotted path.

  The function takes a `ParamsView`; what it returns is up to the kind of class:
  `Translated` for a layer, a config for a schedule or an optimizer.
  """

  def register(fn):
    _translators[dotted_path] = fn
    return fn

  return register


def translate(view: ParamsView):
  """Translates the class of the view's Params.

  Returns:
    What the translator returns, or None where there is no translator, or a
    part has none; the view's report then says which.
  """
  for module in _TRANSLATOR_MODULES:
    importlib.import_module(module)
  cls = view.params.cls
  translator = find(cls)
  if translator is None:
    view.issue('', no_translator(cls))
    return None
  issues_before = len(view.report.issues)
  translated = translator(view)
  view.finish()
  return translated if len(view.report.issues) == issues_before else None


def find(cls: type) -> Callable | None:
  """Returns the translator of a class, or None.

  A class without one of its own has its base's if it overrides nothing but
  `Params()`: what computes differently is not its parent.
  """
  for base in cls.__mro__:
    translator = _translators.get(class_path(base))
    if translator is not None:
      return translator
    if overrides(base):
      return None
  return None


def no_translator(cls: type) -> str:
  """Returns why a class has no translator."""
  for base in cls.__mro__[1:]:
    if class_path(base) in _translators:
      return (
        f'it is not its parent {class_path(base)}, since it overrides'
        f' {", ".join(sorted(overrides(cls))) or "parts of it"}'
      )
  return 'nobody has translated this class'


def overrides(cls: type) -> set[str]:
  """Returns the names that a class defines and that can change what it does."""
  names = {
    name
    for name in vars(cls)
    if name
    not in (
      'Params',
      '__module__',
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
