"""What would make a task native."""

import inspect
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
{parts}
  config = ...  # Of a pax_compat {kind} that computes the same.
  variables = ...  # Which of its variables are which of Lingvo's.
  return registry.Translated(config, variables)
"""


def of(
  params: Any, issues: Iterable[Issue], layers: Layer | None
) -> tuple[str, ...]:
  """Returns pieces of advice, the task's class first.

  Args:
    params: of the task.
    issues: what keeps it from being native.
    layers: of the task.
  """
  registry.load_translators()
  inside = list(layer_trees.inside(layers)) if layers else []
  pieces = []
  if registry.find(params.cls) is None:
    pieces.append(_about_class(params.cls, inside))
  alike: dict[tuple, list[Issue]] = {}
  for issue in (*issues, *(i for layer in inside for i in layer.issues)):
    # Of a class it is said once that it has no translation.
    key = (issue.class_path, issue.field, issue.field and issue.message)
    if issue.path not in [other.path for other in alike.get(key, ())]:
      alike.setdefault(key, []).append(issue)
  told = (_about(own, params.cls) for own in alike.values())
  return tuple([*pieces, *filter(None, told)])


def _about_class(cls: type, layers: list[Layer]) -> str:
  """Says what is to be done for a class of task."""
  unknown = {i.class_path for one in layers for i in one.issues if not i.field}
  names = dict.fromkeys(layer.class_path for layer in layers)
  known = _names(name for name in names if name not in unknown)
  missing = _names(name for name in names if name in unknown)
  told = (
    f'translate {class_path(cls)}: a function with'
    f" @translates('{class_path(cls)}') in a module of yours"
  )
  changed = _changed(cls)
  if changed:
    told += f'. Beyond BaseTask it has {", ".join(changed)}'
  if known:
    told += f'. Of the layers in it these have a translation: {known}'
  return told + (f'. These have none: {missing}' if missing else '')


def _names(paths: Iterable[str]) -> str:
  return ', '.join(dict.fromkeys(path.rpartition('.')[2] for path in paths))


def _changed(cls: type) -> list[str]:
  """Returns what a class of task has that Lingvo's base has not."""
  base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
  before = cls.__mro__[: cls.__mro__.index(base)] if base in cls.__mro__ else ()
  names = {name for one in before for name in registry.overrides(one)}
  return sorted(name for name in names if name != '__init__')


def _about(alike: list[Issue], task: type) -> str:
  """Says what is to be done about issues that differ in their place only.

  '' where what is said of the task's class says it.
  """
  [issue, *others] = alike
  also = f' (and in {len(others)} other place(s))' if others else ''
  if issue.field:
    return f'{issue.path}: {issue.message}{also}'
  if issue.class_path == class_path(task):
    return '' if registry.find(task) is None else f'{issue}'
  if registry.UNKNOWN == issue.message and registry.find(task) is None:
    return ''
  if '@translates' in issue.message:
    return f'{issue.class_path}: {issue.message}'
  return (
    f'{issue.class_path}: {issue.message}; do without, or translate it with'
    f" @translates('{issue.class_path}')"
  )


def in_short(issues: Iterable[Issue]) -> list[str]:
  """Returns in a few words each what the issues ask for."""
  words = {}
  for issue in issues:
    if issue.field:
      words[f'change {issue.path}'] = None
    else:
      words[f'translate {issue.class_path}'] = None
  return list(words)


def sketch(params: Any) -> str:
  """Returns the source of a translator of a class that has none, to begin with.

  '' where it has one.

  Args:
    params: of the task.
  """
  if registry.find(params.cls) is not None:
    return ''
  base = lingvo_runtime.module('lingvo.core.base_model').BaseTask
  parts = [
    f'  {name} = registry.translate(view.child({name!r}))'
    for name in _layer_fields(params, base)
  ]
  return _SKETCH.format(
    path=class_path(params.cls),
    name=_snake(params.cls.__name__),
    kind='model' if issubclass(params.cls, base) else 'layer',
    parts='\n'.join(parts or ['  ...']),
  )


def _layer_fields(params: Any, base: type) -> Iterator[str]:
  """Yields the fields that a class has added to hold a layer each."""
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
