"""The registry of translators: from a Lingvo class to a function of its Params.

A translator reads the Params through a `ParamsView` and returns the config of
the JAX layer and the map of its variables:

    @translates('my.layers.Offset')
    def offset(view: ParamsView) -> Translated:
      view.get('params_init')  # The weight starts at 0.
      config = linears.Bias.config(dims=view.get('dims'))
      return Translated(config, VariableMap([Variable(('b',), 'b')]))

`translate` calls it, and does what is the same for all layers: it sets dtypes
and `skip_lp_regularization`, and finds the fields that were not read:

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

import dataclasses
import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat import config as config_lib
from pax_compat import errors

# Modules that register translators, imported when the first one is asked for.
_TRANSLATOR_MODULES = (
  'adaptors.translate.transformers.attention',
  'adaptors.translate.transformers.batch_major_attention',
  'adaptors.translate.transformers.batch_major_relative',
  'adaptors.translate.transformers.batch_major_stacks',
  'adaptors.translate.transformers.batch_major_transformer',
  'adaptors.translate.builder.builder_attention',
  'adaptors.translate.builder.builder_graphs',
  'adaptors.translate.builder.builder_layers',
  'adaptors.translate.builder.builder_parts',
  'adaptors.translate.layers.embeddings',
  'adaptors.translate.transformers.gpipe',
  'adaptors.translate.transformers.gpipe_parts',
  'adaptors.translate.gshard.gshard_bert',
  'adaptors.translate.gshard.gshard_builder',
  'adaptors.translate.gshard.gshard_uni_transformer',
  'adaptors.translate.layers.basic_layers',
  'adaptors.translate.training.learner_fields',
  'adaptors.translate.tasks.lm',
  'adaptors.translate.layers.lm_layers',
  'adaptors.translate.transformers.moe',
  'adaptors.translate.training.optimizers',
  'adaptors.translate.transformers.pipelines',
  'adaptors.translate.training.program_schedule',
  'adaptors.translate.layers.rnn',
  'adaptors.translate.layers.rnn_mixture',
  'adaptors.translate.training.schedules',
  'adaptors.translate.layers.softmaxes',
  'adaptors.translate.training.task_schedules',
  'adaptors.translate.transformers.time_major_transformer',
)

UNKNOWN = 'no translator is registered for this class'

_translators: dict[str, Callable] = {}


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


def translates(dotted_path: str):
  """Registers the decorated function for the class of that dotted path.

  The function takes a `ParamsView` and returns `Translated` for a layer, a
  config for a schedule or an optimizer; None where it added an issue.
  """

  def register(fn):
    _translators[dotted_path] = fn
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
    view.issue('', no_translator(cls))
    return None
  view.compare_with(_translated_base(cls))
  issues_before = len(view.report.issues)
  try:
    translated = call(translator, view)
  except Exception as error:
    # An error caused by an earlier issue is not reported again.
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
    own = fdl.ordered_arguments(config)
    config.set(**{k: v for k, v in fields.items() if k not in own})
  return translated


def unreadable(error: Exception) -> str:
  """Returns the message for Params whose values made a translator fail."""
  if isinstance(error, errors.UserError):
    return str(error)
  return (
    'its Params do not fit together, or a value has a wrong type:'
    f' {type(error).__name__}: {error} ({errors.place_of(error)})'
  )


def registered() -> Mapping[str, Callable]:
  """Returns the registered translators by dotted path of the class."""
  return types.MappingProxyType(_translators)


def load_translators():
  """Imports all modules that register translators."""
  for module in _TRANSLATOR_MODULES:
    importlib.import_module(module)


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
