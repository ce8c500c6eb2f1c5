"""Variables of repeated layers, stacked along a new first dimension."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from adaptors.params import params_trees
from adaptors.translate.variables import (
  AlreadyStacked,
  Chain,
  Identity,
  Reshape,
  Stack,
  Transpose,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView

# Initializers that Lingvo computes from the shape of the stacked weight, or
# from a shape without its last dimensions.
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
  """Returns the variables of the child `body`, which Lingvo stacks too.

  Args:
    view: of the repeating layer; gets an issue if that is not translated.
    variables: of the child alone.
    count: the number of repeats.
    path: the child's path in JAX.
  """
  check_initializers(view, 'body')
  return VariableMap(
    dataclasses.replace(
      v, transform=_after(AlreadyStacked(), _of_each(view, v, count))
    )
    for v in variables
  ).under('body', path)


def check_initializers(view: ParamsView, field: str):
  """Adds an issue if an initializer differs for weights that Lingvo stacks.

  Args:
    view: of the repeating layer.
    field: the repeated child.
  """
  for method in sorted(set(_init_methods(view.params.Get(field)))):
    if method in _BY_WHOLE_SHAPE:
      view.issue(
        field,
        f'its params_init {method!r} is not translated for repeated weights:'
        ' Lingvo computes it from the stacked shape',
      )


def per_layer(
  view: ParamsView, variables: VariableMap, names: Sequence[str], path: str
) -> VariableMap:
  """Returns the variables of a repeated layer; in Lingvo each has its own.

  Args:
    view: of the repeating layer; gets an issue if that is not translated.
    variables: of the repeated layer alone.
    names: of the layers in Lingvo.
    path: the repeated layer's path in JAX.
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
  """Returns the chain of two transforms."""
  if type(transform) is Identity:
    return first
  steps = transform.steps if isinstance(transform, Chain) else (transform,)
  return Chain((first, *steps))


def _of_each(view: ParamsView, variable: Variable, count: int) -> Any:
  """Returns a variable's transform, for `count` stacked variables."""
  transform = variable.transform
  if isinstance(transform, Identity):
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
    f'the transform of its variable {", ".join(variable.theta)} to'
    f' {variable.jax} is not translated for repeated layers',
  )
  return Identity()


def _init_methods(value: Any) -> Iterator[str]:
  """Yields the methods of all initializers in Params."""
  for node in params_trees.all_params(value):
    if 'params_init' in node:
      yield node.params_init.method
