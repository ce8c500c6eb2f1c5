"""Advice on how to make a task native."""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from adaptors import lingvo_runtime
from adaptors.migrate.examine import layer_trees
from adaptors.migrate.findings import Layer
from adaptors.params import params_trees
from adaptors.translate import registry
from adaptors.translate.view import Issue, class_path

_SKETCH = """\
from adaptors.translate import registry


@registry.translates({path!r})
def {name}(view):
{children}
  config = ...  # A config of an equivalent pax_compat {kind}.
  variables = ...  # A VariableMap from its variables to Lingvo's.
  return registry.Translated(config, variables)
"""


def of(
  params: Any, issues: Iterable[Issue], layers: Layer | None
) -> tuple[str, ...]:
  """Returns the advice on a task, on its class first.

  Args:
    params: of the task.
    issues: the reasons why it is not native.
    layers: of the task.
  """
  registry.load_translators()
  inside = list(layer_trees.descendants(layers)) if layers else []
  pieces = []
  if registry.find(params.cls) is None:
    pieces.append(_about_class(params.cls, inside))
  alike: dict[tuple, list[Issue]] = {}
  for issue in (*issues, *(i for layer in inside for i in layer.issues)):
    # A class without a translation is mentioned once.
    key = (issue.class_path, issue.field, issue.field and issue.message)
    if issue.path not in [other.path for other in alike.get(key, ())]:
      alike.setdefault(key, []).append(issue)
  others = (_about(own, params.cls) for own in alike.values())
  return tuple([*pieces, *filter(None, others)])


def _about_class(cls: type, layers: list[Layer]) -> str:
  """Returns the advice on a task's class."""
  unknown = {i.class_path for one in layers for i in one.issues if not i.field}
  names = dict.fromkeys(layer.class_path for layer in layers)
  known = _names(name for name in names if name not in unknown)
  missing = _names(name for name in names if name in unknown)
  advice = (
    f'translate {class_path(cls)}: write a function with'
    f" @translates('{class_path(cls)}') in your own module"
  )
  changed = _changed(cls)
  if changed:
    advice += f'. Beyond BaseTask it has {", ".join(changed)}'
  if known:
    advice += f'. These of its layers have a translation: {known}'
  return advice + (f'. These do not: {missing}' if missing else '')


def _names(paths: Iterable[str]) -> str:
  return ', '.join(dict.fromkeys(path.rpartition('.')[2] for path in paths))


def _changed(cls: type) -> list[str]:
  """Returns the methods that a class of task adds to BaseTask or overrides."""
  base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
  before = cls.__mro__[: cls.__mro__.index(base)] if base in cls.__mro__ else ()
  names = {name for one in before for name in registry.overrides(one)}
  return sorted(name for name in names if name != '__init__')


def _about(alike: list[Issue], task: type) -> str:
  """Returns the advice on issues that differ in their path only.

  '' if the advice on the task's class covers them.
  """
  [issue, *others] = alike
  also = f' (and at {len(others)} other path(s))' if others else ''
  if issue.field:
    return f'{issue.path}: {issue.message}{also}'
  if issue.class_path == class_path(task):
    return '' if registry.find(task) is None else f'{issue}'
  if registry.UNKNOWN == issue.message and registry.find(task) is None:
    return ''
  if re.search(r'\btranslates(_part)?\(', issue.message):
    return f'{issue.class_path}: {issue.message}'
  return (
    f'{issue.class_path}: {issue.message}; remove it, or translate it with'
    f" @translates('{issue.class_path}')"
  )


def brief(issues: Iterable[Issue]) -> list[str]:
  """Returns short advice on the issues, without repetitions."""
  return list(
    dict.fromkeys(
      f'change {issue.path}' if issue.field else f'translate {issue.class_path}'
      for issue in issues
    )
  )


def sketch(params: Any) -> str:
  """Returns source code to start a translator from; '' if there is one.

  Args:
    params: of the task.
  """
  if registry.find(params.cls) is not None:
    return ''
  base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
  children = [
    f'  {name} = registry.translate(view.child({name!r}))'
    for name in _layer_fields(params, base)
  ]
  return _SKETCH.format(
    path=class_path(params.cls),
    name=_snake(params.cls.__name__),
    kind='model' if issubclass(params.cls, base) else 'layer',
    children='\n'.join(children or ['  ...']),
  )


def _layer_fields(params: Any, base: type) -> Iterator[str]:
  """Yields the fields that a class adds for the Params of a child layer."""
  base_layer = lingvo_runtime.module('lingvo.core.base_layer').BaseLayer
  common = base.Params()
  for name, value in params.IterParams():
    if name in common or not params_trees.is_params(value):
      continue
    cls = value.cls if 'cls' in value else None
    if inspect.isclass(cls) and issubclass(cls, base_layer):
      yield name


def _snake(name: str) -> str:
  return ''.join(
    f'_{c.lower()}' if c.isupper() and i else c.lower()
    for i, c in enumerate(name)
  )
