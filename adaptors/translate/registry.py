"""The registry of translators: from a Lingvo class to a function of its Params.

A translator reads the Params through a `ParamsView` and returns the config of
the JAX layer and the map of its variables:

    @translates('my.layers.Offset')
    def offset(view: ParamsView) -> Translated:
      view.get('params_init')  # The weight starts at 0.
      config = linears.Bias.config(dims=view.get('dims'))
      return Translated(config, VariableMap([Variable(('b',), 'b')]))

`translate` calls it. For all layers it sets dtypes and
`skip_lp_regularization`, and reports the fields that were not read:

    >>> from adaptors import lingvo_runtime
    >>> from adaptors.translate.view import Report
    >>> layers = lingvo_runtime.module('lingvo.core.layers')
    >>> params = layers.LayerNorm.Params().Set(input_dim=4)
    >>> norm = translate(ParamsView(params, 'task.norm', Report()))
    >>> norm.config.cls.__name__, norm.config.dim, norm.config.dtype.__name__
    ('LayerNorm', 4, 'float32')
    >>> [(variable.theta, variable.jax) for variable in norm.variables]
    [(('scale',), 'scale'), (('bias',), 'bias')]

A class that overrides anything but `Params()` needs its own translator:

    >>> class Doubled(layers.LayerNorm):
    ...   def FProp(self, theta, inputs):
    ...     return 2 * super().FProp(theta, inputs)
    >>> view = ParamsView(Doubled.Params(), 'task.norm', Report())
    >>> translate(view)
    >>> print(view.report.issues[0].message)
    it is not its parent lingvo.core.layers.LayerNorm, since it overrides FProp
"""

import collections
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat import config as config_lib
from pax_compat import errors

UNKNOWN = 'no translator is registered for this class'

# Translators, and those that were registered as fallbacks.
_translators = collections.ChainMap[str, Callable]({}, {})


@dataclasses.dataclass(frozen=True)
class Translated:
  """The result of a layer's translator.

  Attributes:
    config: of the JAX layer.
    variables: maps its variables to Lingvo's.
    children: only for the layers of `lingvo.core.builder`: the JAX paths of
      inner layers, such as `layers_0.main`, by their Lingvo paths.
  """

  config: config_lib.Config
  variables: VariableMap = VariableMap()
  children: Mapping[str, str] = dataclasses.field(default_factory=dict)


def translates(dotted_path: str, *, fallback: bool = False):
  """Registers the decorated function for the class of that dotted path.

  The function takes a `ParamsView` and returns `Translated` for a layer, a
  config for a schedule or an optimizer; None where it added an issue.

  Args:
    dotted_path: of the class.
    fallback: whether a translator that is registered without `fallback`, before
      or after this one, takes precedence.
  """

  def register(fn):
    _translators.maps[int(fallback)][dotted_path] = fn
    return fn

  return register


def translate(view: ParamsView):
  """Calls the translator of the class of the view's Params.

  Returns:
    The translator's result; None after adding an issue to the view's report.
  """
  load_translators()
  cls = view.params.cls
  translator = find(cls)
  if translator is None:
    for base in cls.__mro__:
      if class_path(base) in view.report.bridges:
        return view.report.bridges[class_path(base)](view)
    view.issue('', no_translator(cls) + how_to_register(cls))
    return None
  view.compare_with(_translated_base(cls))
  issues_before = len(view.report.issues)
  try:
    translated = call(translator, view)
  except Exception as error:
    # Most errors after an issue are caused by it, and are not reported again.
    # The log has the traceback, in case the translator itself is wrong.
    logging.debug('translating %s: %s', class_path(cls), error, exc_info=True)
    if len(view.report.issues) == issues_before:
      view.issue('', unreadable(error))
    return None
  view.finish()
  return translated if len(view.report.issues) == issues_before else None


def call(translator: Callable, view: ParamsView) -> Any:
  """Calls a translator, and handles the fields that all layers have.

  `ParamsView.base_fields` are set on the config, except those that are set
  already (a translator may return a child's config). `params_init` is ignored
  if the layer has no variables.
  """
  translated = translator(view)
  is_layer = translated is None or isinstance(translated, Translated)
  if not is_layer or 'skip_lp_regularization' not in view.params:
    return translated
  fields = view.base_fields()
  if translated is None or not tuple(translated.variables):
    view.get('params_init')
  config = translated and translated.config
  if isinstance(config, config_lib.Config):
    for name, value in fields.items():
      if not config_lib.is_set(config, name):
        config.set(**{name: value})
  return translated


def unreadable(error: Exception) -> str:
  """Returns the message for Params whose values made a translator fail."""
  if isinstance(error, errors.UserError):
    return str(error)
  return (
    'its Params do not fit together, or a value has a wrong type:'
    f' {type(error).__name__}: {error} ({errors.location_of(error)})'
  )


def registered() -> Mapping[str, Callable]:
  """Returns the registered translators by dotted path of the class."""
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

  A class inherits its base's translator if it overrides only `Params()`.

  Args:
    cls: the class.
    translators: by dotted path of the class; None for the registered ones.
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
  """Returns the class in whose name the translator of `cls` is registered."""
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


# What a translator returns, where it is not a `Translated`, by base class.
_RETURNED = {
  'lingvo.core.optimizer.Base': 'the config of an equivalent optimizer',
  'lingvo.core.schedule.BaseSchedule': 'the config of an equivalent schedule',
}


def how_to_register(cls: type) -> str:
  """Returns how to translate a class of one kind; '' for others."""
  for base in cls.__mro__:
    returned = _RETURNED.get(class_path(base))
    if returned:
      return (
        f"; write a function with @registry.translates('{class_path(cls)}')"
        f' (of adaptors.translate) that returns {returned}, in a module of'
        ' --import_modules'
      )
  return ''


def overrides(cls: type) -> set[str]:
  """Returns the names in a class that can change what it computes."""
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
  """Whether an `__init__` was added by Lingvo's metaclass.

  The metaclass gives every layer an `__init__`, and wraps it in a function
  whose closure has it as `func`.
  """
  if not inspect.isfunction(init):
    return False
  wrapped = inspect.getclosurevars(init).nonlocals.get('func')
  return getattr(wrapped, '__qualname__', '').endswith('TrivialInit')
