"""The layers of a task, each with what keeps it from being native.

Of a bridged task Lingvo's own layers tell, since each has the Params that its
parent gave it. A native task is not built for that: all of it is translated,
and its variables tell what is in it.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adaptors import lingvo_runtime
from adaptors.migrate.findings import Layer
from adaptors.params import params_trees
from adaptors.translate import registry
from adaptors.translate.builder import builder_parts
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import Issue, ParamsView, Report, class_path

# How messages call the task.
_ROOT = 'task'
_INDEXED = re.compile(r'(.+?)(?:_|\[)(\d+)\]?')


def of_built(task: Any, issues: Sequence[Issue]) -> Layer:
  """Returns the layers of a task that is built.

  Args:
    task: Lingvo's.
    issues: what keeps it from being native; none of a native one.
  """
  registry.load_translators()
  return Layer(
    name=_ROOT,
    class_path=class_path(type(task)),
    is_native=not issues,
    parameters=_trained(task),
    issues=_own(task, issues) or tuple(issues),
    children=_built_children(task, _ROOT),
  )


def _built_children(parent: Any, path: str) -> tuple[Layer, ...]:
  return _joined(
    _built(name, child, parent, path) for name, child in _children(parent)
  )


def _built(name: str, layer: Any, parent: Any, path: str) -> Layer:
  issues = _issues_of(name, layer, parent, path)
  children = _built_children(layer, f'{path}.{name}') if issues else ()
  return Layer(
    name=name,
    class_path=class_path(type(layer)),
    is_native=not issues,
    parameters=_trained(layer),
    issues=_own(layer, issues) if children else issues,
    children=children,
  )


def _issues_of(
  name: str, layer: Any, parent: Any, path: str
) -> tuple[Issue, ...]:
  """Returns what keeps a layer, or one in it, from being native."""
  report = Report()
  # What the parent has handed down is the parent's to answer for.
  view = ParamsView(parent.params, path, report).adopt(layer.params, name)
  if registry.find(type(layer)) is None and builder_parts.is_part(type(layer)):
    builder_parts.translate_part(view)
  else:
    registry.translate(view)
  return tuple(report.issues)


def _own(layer: Any, issues: Sequence[Issue]) -> tuple[Issue, ...]:
  """Returns the issues with a layer's class, not with those in it."""
  own = class_path(type(layer))
  return tuple(issue for issue in issues if issue.class_path == own)


def _children(layer: Any) -> Iterable[tuple[str, Any]]:
  """Yields the layers in a layer, lists of them one by one."""
  others = _no_layers()
  for name, child in sorted(dict(layer.children).items()):
    for own_name, one in _one_by_one(name, child):
      if not isinstance(one, others):
        yield own_name, one


def _one_by_one(name: str, child: Any) -> Iterable[tuple[str, Any]]:
  if isinstance(child, list | tuple):
    for index, one in enumerate(child):
      yield from _one_by_one(f'{name}[{index}]', one)
  elif isinstance(child, Mapping):
    for key, one in sorted(child.items()):
      yield from _one_by_one(f'{name}.{key}', one)
  else:
    yield name, child


def _no_layers() -> tuple[type, ...]:
  """Returns the classes of a task's children that are no layers of a model."""
  named = (
    ('lingvo.core.base_input_generator', 'BaseInputGenerator'),
    ('lingvo.core.learner', 'Learner'),
    ('lingvo.core.schedule', 'BaseSchedule'),
  )
  return tuple(getattr(lingvo_runtime.module(m), c) for m, c in named)


def _trained(layer: Any) -> int:
  """Returns how many numbers of a layer are trained."""
  return sum(
    math.prod(variable.shape.as_list())
    for _, variable in layer.vars.FlattenItems()
    if variable.trainable
  )


@dataclasses.dataclass
class _Node:
  """A layer of a native task, while its variables are gathered."""

  parameters: int = 0
  becomes: str | None = None
  children: dict[str, '_Node'] = dataclasses.field(default_factory=dict)


def of_variables(
  params: Any, variables: VariableMap, sizes: Mapping[str, int]
) -> Layer:
  """Returns the layers of a native task.

  Args:
    params: of the task.
    variables: which of its variables are which here.
    sizes: how many numbers each variable here has, by its path.
  """
  root = _Node()
  for variable in variables:
    if not variable.is_trainable:
      continue
    for theta in variable.theta:
      _add(
        root, theta, variable.jax, sizes[variable.jax] // len(variable.theta)
      )
  return _native(_ROOT, root, params)


def _add(root: _Node, theta: str, path: str, size: int):
  """Adds a variable to the layers that it is in."""
  *names, _ = theta.split('.')
  here = path.rpartition('/')[0]
  node = root
  node.parameters += size
  for name in names:
    node = node.children.setdefault(name, _Node())
    node.parameters += size
  node.becomes = here if node.becomes in (None, here) else ''


def _native(name: str, node: _Node, params: Any) -> Layer:
  children = (
    _native(own_name, child, _params_of(params, own_name))
    for own_name, child in node.children.items()
  )
  return Layer(
    name=name,
    class_path='' if params is None else class_path(params.cls),
    is_native=True,
    parameters=node.parameters,
    becomes=node.becomes or '',
    children=_joined(children),
  )


def _params_of(params: Any, name: str) -> Any | None:
  """Returns the Params of a layer by its name, where its parent's tell."""
  if params is None:
    return None
  for field in (name, f'{name}_tpl'):
    found = params_trees.get(params, field)
    if params_trees.is_params(found) and 'cls' in found:
      return found
  return None


def _joined(layers: Iterable[Layer]) -> tuple[Layer, ...]:
  """Returns layers, with those that are alike but for a number as one."""
  groups: dict[Any, list[tuple[str, int, Layer]]] = {}
  for layer in layers:
    found = _INDEXED.fullmatch(layer.name)
    base, number = (found[1], int(found[2])) if found else (layer.name, -1)
    alike = (base, number < 0 or _alike(layer))
    groups.setdefault(alike, []).append((base, number, layer))
  return tuple(_one_of(group) for group in groups.values())


def _alike(layer: Layer) -> Any:
  """Returns what layers have in common that are alike."""
  return (
    layer.class_path,
    layer.is_native,
    layer.parameters,
    tuple((i.class_path, i.field, i.message) for i in layer.issues),
    tuple((child.name, _alike(child)) for child in layer.children),
  )


def _one_of(group: list[tuple[str, int, Layer]]) -> Layer:
  base, _, first = group[0]
  if len(group) == 1:
    return first
  numbers = sorted(number for _, number, _ in group)
  count = len(numbers)
  shown = ','.join(map(str, numbers))
  if numbers == list(range(numbers[0], numbers[0] + count)):
    shown = f'{numbers[0]}-{numbers[-1]}'
  return dataclasses.replace(
    first,
    name=f'{base}[{shown}]',
    count=count,
    parameters=count * first.parameters,
    becomes='',
  )


def inside(layer: Layer) -> Iterable[Layer]:
  """Yields the layers in a layer, each before those in it."""
  for child in layer.children:
    yield child
    yield from inside(child)
