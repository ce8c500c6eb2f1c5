"""The tree of a task's layers, with the reasons why each is not native.

The tree of a bridged task is that of Lingvo's layers, which have the Params set
by their parents. A native task is not built: its tree follows from its
variables.
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

# The task's name in messages.
_ROOT = 'task'
_INDEXED = re.compile(r'(.+?)(?:_|\[)(\d+)\]?')


def of_built(task: Any, issues: Sequence[Issue]) -> Layer:
  """Returns the layers of a Lingvo task.

  Args:
    task: the task, built.
    issues: the reasons why it is not native.
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
  return _merged(
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
  """Returns the reasons why a layer or its descendants are not native."""
  report = Report()
  # Fields set by the parent are not the layer's issues.
  view = ParamsView(parent.params, path, report).adopt(layer.params, name)
  if registry.find(type(layer)) is None and builder_parts.is_part(type(layer)):
    builder_parts.translate_part(view)
  else:
    registry.translate(view)
  return tuple(report.issues)


def _own(layer: Any, issues: Sequence[Issue]) -> tuple[Issue, ...]:
  """Returns the issues of a layer's class, without its descendants'."""
  own = class_path(type(layer))
  return tuple(issue for issue in issues if issue.class_path == own)


def _children(layer: Any) -> Iterable[tuple[str, Any]]:
  """Yields the child layers with their names, lists of layers flattened."""
  others = _excluded()
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


def _excluded() -> tuple[type, ...]:
  """Returns the classes of a task's children that are not model layers."""
  named = (
    ('lingvo.core.base_input_generator', 'BaseInputGenerator'),
    ('lingvo.core.learner', 'Learner'),
    ('lingvo.core.schedule', 'BaseSchedule'),
  )
  return tuple(getattr(lingvo_runtime.module(m), c) for m, c in named)


def _trained(layer: Any) -> int:
  """Returns the number of a layer's trainable parameters."""
  return sum(
    math.prod(variable.shape.as_list())
    for _, variable in layer.vars.FlattenItems()
    if variable.trainable
  )


@dataclasses.dataclass
class _Node:
  """A layer of a native task, under construction."""

  parameters: int = 0
  becomes: str | None = None
  children: dict[str, '_Node'] = dataclasses.field(default_factory=dict)


def of_variables(
  params: Any, variables: VariableMap, sizes: Mapping[str, int]
) -> Layer:
  """Returns the layers of a native task.

  Args:
    params: of the task.
    variables: maps variables here to Lingvo's.
    sizes: number of elements of each variable here, by path.
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
  """Adds a variable to the layers that contain it."""
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
    children=_merged(children),
  )


def _params_of(params: Any, name: str) -> Any | None:
  """Returns a child's Params from its parent's by name, or None."""
  if params is None:
    return None
  for field in (name, f'{name}_tpl'):
    found = params_trees.get(params, field)
    if params_trees.is_params(found) and 'cls' in found:
      return found
  return None


def _merged(layers: Iterable[Layer]) -> tuple[Layer, ...]:
  """Merges layers that are identical except for their index."""
  groups: dict[Any, list[tuple[str, int, Layer]]] = {}
  for layer in layers:
    found = _INDEXED.fullmatch(layer.name)
    base, number = (found[1], int(found[2])) if found else (layer.name, -1)
    alike = (base, number < 0 or _alike(layer))
    groups.setdefault(alike, []).append((base, number, layer))
  return tuple(_one_of(group) for group in groups.values())


def _alike(layer: Layer) -> Any:
  """Returns a key that identical layers share."""
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


def descendants(layer: Layer) -> Iterable[Layer]:
  """Yields the layers below a layer, in preorder."""
  for child in layer.children:
    yield child
    yield from descendants(child)
