"""Makes optimizers treat our weights as Lingvo's treat its variables."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from adaptors.equivalents import lingvo_optimizers
from adaptors.translate.training import optimizers
from adaptors.translate.variable_names import VariableNames
from adaptors.translate.variables import (
  AlreadyStacked,
  Chain,
  Concat,
  Identity,
  Map,
  Reshape,
  Stack,
  Transpose,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView
from pax_compat import config as config_lib
from pax_compat.config import Config
from pax_compat.optimizers import BaseOptimizer

# TensorFlow's collections of variables that moving averages include: always,
# and with `ema_decay_moving_vars`.
_AVERAGED, _MOVING = 'moving_average_variables', 'moving_vars'


@dataclasses.dataclass(frozen=True)
class TaskFacts:
  """Metadata of a task that its learners need.

  Attributes:
    names: the names of its variables.
    clipped_theta: theta path of the variables whose gradients are clipped
      together; '' for none.
    clipped_norm: the norm to which they are clipped.
    defers_steps: whether the global step counts only updates of weights.
    sparse_tables: paths of our weights whose gradients are sparse in
      TensorFlow, with the rows that a batch looks up.
    may_have_others: whether gradients of other weights may be sparse, which
      only tracing can tell: those of bridged layers.
    looked_up: paths of such weights that are tables of Lingvo's own layers for
      lookups, for errors before tracing.
    trained_by_source: returns for each data source of the input the paths of
      the weights that its batches train, or None for all; empty if all train
      all.
    left_alone: paths of our weights that the task's own `BProp` does not train.
    not_trained: the non-trainable variables.
  """

  names: VariableNames
  clipped_theta: str = ''
  clipped_norm: float = 0.0
  defers_steps: bool = False
  sparse_tables: frozenset[str] = frozenset()
  may_have_others: bool = False
  looked_up: frozenset[str] = frozenset()
  trained_by_source: Callable[[], tuple[frozenset[str] | None, ...]] = tuple
  left_alone: frozenset[str] = frozenset()
  not_trained: VariableMap = VariableMap()

  def averaged_variables(self, moving_vars: bool) -> list[str]:
    """Returns the paths of non-trainable variables that Lingvo averages.

    Args:
      moving_vars: whether those of `moving_vars` are among them, too.
    """
    kinds = {_AVERAGED, *([_MOVING] if moving_vars else [])}
    return [v.jax for v in self.not_trained if kinds & set(v.collections)]


def as_in_lingvo(
  view: ParamsView, optimizer: Config, facts: TaskFacts, paths: set[str]
) -> Config:
  """Returns an optimizer that treats weights as Lingvo's treats variables.

  Args:
    view: gets an issue if there is none.
    optimizer: the optimizer.
    facts: of the task.
    paths: of the optimizer's weights.
  """
  left = optimizers.leaves_alone(optimizer)
  whole = paths
  if left == lingvo_optimizers.TABLES:
    whole = paths - facts.sparse_tables
  if optimizers.goes_by_whole(optimizer):
    check_whole(view, 'optimizer', facts, whole)
  optimizer = _in_shapes_of_lingvo(view, optimizer, facts, whole)
  tables = sorted(paths & facts.sparse_tables)
  if not left or not (tables or facts.may_have_others):
    return optimizer
  if left.startswith(lingvo_optimizers.UNKNOWN):
    for path in sorted(paths & (facts.sparse_tables | facts.looked_up)):
      view.issue('optimizer', f'how it updates the table {path} is {left}')
  if left == lingvo_optimizers.TABLES:
    view.report.notes.append(
      f'{view.path}.optimizer does not train tables that are looked up, nor'
      f' does it in Lingvo: {", ".join(tables) or "those of bridged layers"}'
    )
  return around(optimizer, lingvo_optimizers.OnLookedUpRows, leaves_alone=left)


def _in_shapes_of_lingvo(
  view: ParamsView, optimizer: Config, facts: TaskFacts, paths: set[str]
) -> Config:
  """Returns an optimizer that gets weights in Lingvo's shapes, if needed."""
  if not optimizers.goes_by_shape(optimizer):
    return optimizer
  last = optimizers.wrapped(optimizer)[-1]
  if issubclass(last.cls, lingvo_optimizers.ByVariables):
    optimizer = optimizer.clone()
    _name_variables(view, optimizers.wrapped(optimizer)[-1], facts, paths)
  steps = {}
  for variable in facts.names.variables:
    found = _steps_to_lingvo(variable.transform)
    if variable.jax not in paths or _is_joined(variable):
      continue
    if found is None:
      view.issue(
        'optimizer',
        f'it depends on the shape of {variable.theta[0]}, which is another one'
        f' here, as {variable.jax}',
      )
    elif found:
      steps[variable.jax] = found
  if not steps:
    return optimizer
  return around(optimizer, lingvo_optimizers.InOtherShapes, steps=steps)


def _name_variables(
  view: ParamsView, optimizer: Config, facts: TaskFacts, paths: set[str]
):
  """Sets Lingvo's names of the weights on a bridged optimizer."""
  names = {}
  for variable in facts.names.variables:
    if variable.jax not in paths or _is_joined(variable):
      continue  # `check_whole` refuses those that are joined.
    if is_stack(variable.transform):
      view.issue(
        'optimizer',
        f'it is bridged, and {variable.jax} is a stack of the variables'
        f' {", ".join(variable.theta)}',
      )
      continue
    names[variable.jax] = facts.names.by_theta[variable.theta[0]]
  optimizer.set(variable_names=names)


def check_whole(
  view: ParamsView, field: str, facts: TaskFacts, paths: set[str]
):
  """Adds an issue with a field that treats each variable as a whole.

  The layers of stacks are treated separately. If there are any, so are layers
  that Lingvo has in one variable, which is an issue.
  """
  variables = facts.names.variables
  treats_layers = any(is_stack(v.transform) for v in variables)
  for variable in variables:
    kept = any(isinstance(s, AlreadyStacked) for s in _steps(variable))
    if treats_layers and kept and variable.jax in paths:
      view.issue(
        field,
        f'it treats variables as a whole; {variable.theta[0]} has several'
        ' layers, and others have one layer each',
      )
    if _is_joined(variable) and variable.jax in paths:
      view.issue(
        field,
        f'it treats variables as a whole, and {", ".join(variable.theta)} are'
        f' one weight here, {variable.jax}',
      )


def _steps(variable: Variable) -> tuple:
  """Returns the transforms that a variable goes through."""
  transform = variable.transform
  return transform.steps if isinstance(transform, Chain) else (transform,)


def _is_joined(variable: Variable) -> bool:
  """Whether a weight is made of several variables and is not a stack."""
  return len(variable.theta) > 1 and not is_stack(variable.transform)


def _steps_to_lingvo(transform: Any) -> list[tuple[str, tuple]] | None:
  """Returns the steps from a weight's shape to that of Lingvo's variable.

  None if it is impossible; see `lingvo_optimizers.InOtherShapes`.
  """
  if isinstance(transform, Identity | Stack):
    return []
  if isinstance(transform, Concat):
    return [] if transform.parts == (transform.size,) else None
  if isinstance(transform, Transpose):
    axes = tuple(int(axis) for axis in np.argsort(transform.axes))
    return [('transpose', axes)]
  if isinstance(transform, Reshape):
    return [('reshape', tuple(transform.lingvo))]
  if isinstance(transform, Chain) and is_stack(transform):
    # Layers are treated separately.
    each = transform.steps[1:]
    if len(each) == 1 and isinstance(each[0], Map):
      return _steps_to_lingvo(each[0].transform)
  elif isinstance(transform, Chain):
    parts = [_steps_to_lingvo(step) for step in reversed(transform.steps)]
    return None if None in parts else sum(parts, [])
  return None


def is_stack(transform: Any) -> bool:
  """Whether a weight is a stack of several Lingvo variables."""
  steps = transform.steps if isinstance(transform, Chain) else (transform,)
  return any(isinstance(step, Stack) for step in steps)


def around(optimizer: Config, wrapper: type, **fields: Any) -> Config:
  """Returns the config of a wrapper with an optimizer's common fields."""
  defaults = config_lib.field_values(Config(BaseOptimizer))
  values = {name: getattr(optimizer, name) for name in defaults}
  return wrapper.config(
    optimizer_tpl=optimizer.clone().set(**defaults),
    **{k: v for k, v in values.items() if not _is_default(v, defaults[k])},
    **fields,
  )


def _is_default(value: Any, default: Any) -> bool:
  return not isinstance(value, Config) and value == default
