"""Variables of a layer that is repeated, with a new first dimension."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from adaptors.params import params_trees
from adaptors.translate.variables import (
  AlreadyStacked,
  Chain,
  Reshape,
  Same,
  Stack,
  Transpose,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView

# Methods of first values that Lingvo works out from a weight's shape with the
# repeats in front of it, or without what comes after them.
_BY_WHOLE_SHAPE = (
  'gaussian_sqrt_fanin',
  'gaussian_sqrt_fanout',
  'gaussian_sqrt_fanavg',
  'truncated_gaussian_sqrt_fanin',
  'truncated_gaussian_sqrt_fanout',
  'uniform_unit_scaling',
  'uniform_unit_scaling_fan_avg',
)


def stacked(
  view: ParamsView, variables: VariableMap, count: int, path: str
) -> VariableMap:
  """Returns the variables of the child `body`, which Lingvo stacks as we do.

  Args:
    view: of the layer that repeats; gets an issue where that is not translated.
    variables: of the child alone.
    count: how often it is repeated.
    path: of it in JAX.
  """
  check_first_values(view, 'body')
  return VariableMap(
    dataclasses.replace(
      v, transform=_after(AlreadyStacked(), _of_each(view, v, count))
    )
    for v in variables
  ).under('body', path)


def check_first_values(view: ParamsView, field: str):
  """Adds an issue where weights that Lingvo stacks begin otherwise here.

  Args:
    view: of the layer that repeats.
    field: what is repeated.
  """
  for method in sorted(set(_init_methods(view.params.Get(field)))):
    if method in _BY_WHOLE_SHAPE:
      view.issue(
        field,
        f'its params_init {method!r} is not translated for weights that are'
        ' repeated: in Lingvo it is that of another shape',
      )


def per_layer(
  view: ParamsView, variables: VariableMap, names: Sequence[str], path: str
) -> VariableMap:
  """Returns the variables of a layer of which Lingvo has several.

  Args:
    view: of the layer that repeats; gets an issue where that is not translated.
    variables: of the repeated layer alone.
    names: of the layers in Lingvo.
    path: of the repeated layer in JAX.
  """
  return VariableMap(
    dataclasses.replace(
      v,
      theta=tuple(f'{name}.{theta}' for name in names for theta in v.theta),
      jax=f'{path}/{v.jax}',
      transform=_after(Stack(), _of_each(view, v, len(names))),
    )
    for v in variables
  )


def _after(first: Any, transform: Any) -> Any:
  """Returns a transform after another one."""
  if type(transform) is Same:
    return first
  steps = transform.steps if isinstance(transform, Chain) else (transform,)
  return Chain((first, *steps))


def _of_each(view: ParamsView, variable: Variable, count: int) -> Any:
  """Returns a variable's transform, of each of `count` that are stacked."""
  transform = variable.transform
  if isinstance(transform, Same):
    return transform
  if isinstance(transform, Chain):
    parts = (
      dataclasses.replace(variable, transform=step) for step in transform.steps
    )
    return Chain(tuple(_of_each(view, part, count) for part in parts))
  if isinstance(transform, Reshape):
    return Reshape((count, *transform.lingvo), (count, *transform.jax))
  if isinstance(transform, Transpose):
    return Transpose((0, *(axis + 1 for axis in transform.axes)))
  view.issue(
    'body',
    f'its variable {", ".join(variable.theta)} becomes {variable.jax} in a way'
    ' that is not translated of repeated layers',
  )
  return Same()


def _init_methods(value: Any) -> Iterator[str]:
  """Yields the methods of first values in Params, lists included."""
  for node in params_trees.all_params(value):
    if 'params_init' in node:
      yield node.params_init.method
