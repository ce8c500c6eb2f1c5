"""Slots: the state of TensorFlow's optimizers per variable, and its names.

A slot's name is the variable's and the optimizer's, numbered in the order of
creation: `lm/w/var/Adam` and `lm/w/var/Adam_1` are the two moments of Adam.
Accumulated gradients have separate names. Keras prefixes the variable's name:
`Adam_1/lm/w/var/m`, with a number for each optimizer of a graph.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
import numpy as np
import optax

from adaptors.equivalents import lingvo_optimizers
from adaptors.translate.training import optimizers, variable_layout
from adaptors.translate.variables import Identity, Stack, Variable
from pax_compat import optimizers as pax_optimizers
from pax_compat.config import Config

# Slots of each variable in the order of creation. Adafactor's depend on the
# variable.
_SLOTS = {
  pax_optimizers.Adagrad: ('sum_of_squares',),
  pax_optimizers.Adam: ('mu', 'nu'),
  pax_optimizers.OptaxOptimizer: ('e_g', 'e_x'),
  pax_optimizers.RmsProp: ('nu', 'trace'),
  pax_optimizers.Sgd: ('trace',),
}
# Other optimizers, whose slots depend on the weight or on wrapped optimizers.
_OTHERS = (
  pax_optimizers.Graft,
  pax_optimizers.Shampoo,
  pax_optimizers.ShardedAdafactor,
)
# Those of Keras' Adam, and those of Shampoo: fields of its state, of which the
# last two have an array for each dimension.
_OF_KERAS = {'mu': 'm', 'nu': 'v'}
_OF_SHAMPOO = {
  'sum_squares': 'accumulator',
  'momentum': 'momentum',
  'preconditioned': 'precond_grad_momentum',
  'statistics': 'mat_statistics',
  'roots': 'mat_preconditioner',
}
# Gradients accumulated by an accumulator of N batches, and of weighted ones.
_ACCUMULATED = ('acc_grads', 'gradients')
# Supported wrappers of optimizers.
_WRAPPERS = (
  lingvo_optimizers.GroupClipped,
  lingvo_optimizers.InOtherShapes,
  lingvo_optimizers.OnLookedUpRows,
  pax_optimizers.ShardedStaticAccumulator,
  pax_optimizers.WeightedAccumulator,
)
# Components of a grafted optimizer in its state, in the order in which Lingvo
# creates their slots; and the beginning of paths in their states.
MAGNITUDE, DIRECTION = 'magnitude', 'direction'
_OF_PART = re.compile(
  rf'(?:(?:\d+|inner_opt_state|wrapped)\.)*({MAGNITUDE}|{DIRECTION})\.'
)

_SUM = re.compile(r'(?:\d+\.)*weight')


@dataclasses.dataclass(frozen=True)
class OptimizerMetadata:
  """An optimizer of a task, here and in Lingvo.

  Attributes:
    learner_path: of its learner's state: `opt_state`, or `opt_state.tag` for
      the task `tag` of a multi-task model.
    key: of the optimizer in a learner with several; '' for a single one.
    weights: prefix of its weights' paths that paths in its state lack:
      `task_tag/` in a multi-task model, else ''.
    theta: likewise, the prefix of Lingvo's theta paths: `tag.` or ''.
    config: of the optimizer here.
    name: TensorFlow's name of the optimizer and its slots, such as `Adam`.
    index: of its learner among those of the task.
    part: of a grafted optimizer that this is: `magnitude` or `direction`; ''
      for a whole optimizer.
    number: of its first slot of this name: a direction's come after those of
      the magnitude.
    keras_scope: prefix of the names of slots if Lingvo's is Keras' optimizer,
      such as `Adam_1/`; else ''.
    is_diagnostic: whether Lingvo's is an `AdaGraft` that keeps norms of steps.
    scope: prefix of the names of the task's variables, such as `tag/`.
    task: the task's name in Lingvo.
    learner: the name of its learner in Lingvo.
  """

  learner_path: str
  key: str
  weights: str
  theta: str
  config: Config
  name: str
  scope: str
  task: str
  learner: str
  index: int = 0
  part: str = ''
  number: int = 0
  keras_scope: str = ''
  is_diagnostic: bool = False

  @property
  def path(self) -> str:
    """The path of its state, such as `opt_state.optimizer.main`."""
    path = f'{self.learner_path}.optimizer'
    return f'{path}.{self.key}' if self.key else path

  @property
  def kind(self) -> type:
    """The class of the innermost optimizer."""
    return optimizers.wrapped(self.config)[-1].cls

  @property
  def slots(self) -> tuple[str, ...]:
    """Slots of each weight, if they do not depend on the weight."""
    return _SLOTS.get(self.kind, ()) if _has_slots(self.config) else ()

  @property
  def batches_per_update(self) -> int:
    """The number of batches whose gradients it accumulates per update."""
    found = self._accumulator
    return found.num_sub_batches if found else 1

  @property
  def counts_by_itself(self) -> bool:
    """Whether Lingvo's counts batches, and adds updates to the global step.

    Optimizers with `num_micro_batches` do, an `Accumulator` does not.
    """
    found = self._accumulator
    return bool(found) and not found.schedule_counts_sub_batches

  @property
  def sums_weights(self) -> bool:
    """Whether it accumulates gradients up to a sum of loss weights."""
    return optimizers.has(self.config, pax_optimizers.WeightedAccumulator)

  @property
  def _accumulator(self) -> Config | None:
    accumulator = pax_optimizers.ShardedStaticAccumulator
    for config in optimizers.wrapped(self.config):
      if config.cls is accumulator:
        return config
    return None

  def owns(self, path: str) -> bool:
    """Whether an array of the state is of this optimizer.

    The components of a grafted optimizer own their states, and the whole the
    rest.

    Args:
      path: of the array.
    """
    within = path.removeprefix(f'{self.path}.')
    if within == path:
      return False
    is_grafted = self.part or self.kind is pax_optimizers.Graft
    found = _OF_PART.match(within) if is_grafted else None
    return (found.group(1) if found else '') == self.part

  def tensors(
    self,
    slot: str,
    variable: Variable,
    names: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
  ) -> tuple[tuple[str, ...], Any] | None:
    """Returns the tensors of a weight's slot in Lingvo's checkpoints.

    Args:
      slot: its name in the state, such as `mu` or `roots.0`.
      variable: the weight.
      names: of the Lingvo variables that the weight is made from.
      shapes: those of the weight's slots `v` and `sum_squares`, if it has them;
        '' is the weight itself.

    Returns:
      The tensors' names and the transform between them and the slot; None for
      a slot that the optimizer does not use.
    """
    transform = variable.transform
    slots = _SLOTS.get(self.kind)
    if slots is None and self.kind is not pax_optimizers.Graft:
      # Its state has Lingvo's shapes, except for stacked layers.
      transform = Stack() if variable_layout.is_stack(transform) else Identity()
    if slot in _ACCUMULATED:
      return tuple(map(self._accumulated, names)), transform
    if self.keras_scope:
      suffix = _OF_KERAS[slot]
      return tuple(f'{self.keras_scope}{n}/{suffix}' for n in names), transform
    if self.kind is pax_optimizers.Shampoo:
      found = self._of_shampoo(slot, transform, shapes['sum_squares'])
      return found and (tuple(f'{n}/{found}' for n in names), transform)
    last = optimizers.wrapped(self.config)[-1]
    if issubclass(last.cls, lingvo_optimizers.ByVariables):
      suffix = last.slot_names[slot]
      return tuple(f'{name}/{suffix}' for name in names), transform
    if slots is None:
      slots = self._of_adafactor(shapes)
    if slot not in slots:
      return None
    if self.kind is pax_optimizers.RmsProp and slot == 'trace':
      # TensorFlow accumulates what is subtracted, Optax what is added.
      transform = _Negative(transform)
    number = self.number + slots.index(slot)
    suffix = f'{self.name}_{number}' if number else self.name
    return tuple(f'{name}/{suffix}' for name in names), transform

  def theta_of(self, field: str) -> str:
    """Returns the theta path of a variable of Lingvo's optimizer."""
    return f'{self.theta}learners[{self.index}].optimizer.{field}'

  def is_sum_of_weights(self, path: str) -> bool:
    """Whether an array is the sum of loss weights since the last update."""
    within = path.removeprefix(f'{self.path}.')
    return self.sums_weights and bool(_SUM.fullmatch(within))

  def other(self, path: str) -> str | None:
    """Returns the tensor of a variable that belongs to no weight, or None.

    Args:
      path: in the state.
    """
    last = optimizers.wrapped(self.config)[-1]
    _, others, name = path.rpartition('.others.')
    if not others or not issubclass(last.cls, lingvo_optimizers.ByVariables):
      return None
    return last.other_names[name]

  def initial_value(self, slot: str) -> float:
    """Returns the initial value of a slot's elements."""
    config = optimizers.wrapped(self.config)[-1]
    if slot in ('sum_of_squares', 'sum_squares'):
      return config.initial_accumulator_value
    if slot == 'nu' and self.kind is pax_optimizers.RmsProp:
      return config.initial_scale
    return 0.0

  def _of_adafactor(
    self, shapes: Mapping[str, tuple[int, ...]]
  ) -> tuple[str, ...]:
    momentum = ('m',) if optimizers.wrapped(self.config)[-1].beta1 else ()
    is_whole = math.prod(shapes['v']) == math.prod(shapes[''])
    return (*momentum, 'v') if is_whole else (*momentum, 'vr', 'vc')

  def _of_shampoo(
    self, slot: str, transform: Any, shape: tuple[int, ...]
  ) -> str | None:
    """Returns the suffix of a slot; None for one that only exists here."""
    if variable_layout.is_stack(transform):
      shape = shape[1:]
    slot, _, dim = slot.partition('.')
    made = optimizers.wrapped(self.config)[-1].Instantiate()
    exists = {
      'momentum': bool(made.momentum),
      'preconditioned': bool(made.momentum) and made.is_preconditioned(shape),
    }
    if dim:
      exists[slot] = int(dim) in made.matrix_dims(shape)
    if not exists.get(slot, True):
      return None
    return '_'.join(filter(None, (self.name, _OF_SHAMPOO[slot], dim)))

  def _accumulated(self, name: str) -> str:
    if self.counts_by_itself:
      return f'{name}/GradientAccumulator'
    scope = f'{self.scope}{self.task}/{self.learner}'
    return f'{scope}/{name}/grad_accumulator/var'


def is_known(config: Config) -> bool:
  """Whether the slots of an optimizer are known."""
  *others, last = optimizers.wrapped(config)
  if any(other.cls not in _WRAPPERS for other in others):
    return False
  if last.cls is pax_optimizers.Graft:
    parts = last.magnitude_tpl, last.direction_tpl
    return all(map(_is_known_part, parts)) and any(map(_has_slots, parts))
  if last.cls is pax_optimizers.OptaxOptimizer:
    grad_tx = last.grad_tx
    is_config = isinstance(grad_tx, fdl.Buildable)
    return is_config and fdl.get_callable(grad_tx) is optax.scale_by_adadelta
  if issubclass(last.cls, lingvo_optimizers.ByVariables):
    is_alone = not optimizers.accumulates(config)
    return is_alone and last.slot_names is not None
  return last.cls in _SLOTS or last.cls in _OTHERS


def _is_known_part(config: Config) -> bool:
  """Whether the slots of one component of a grafted optimizer are known."""
  return is_known(config) and not optimizers.has(config, *_OTHERS)


def _has_slots(config: Config) -> bool:
  """Whether an optimizer has state for each weight."""
  last = optimizers.wrapped(config)[-1]
  return last.cls is not pax_optimizers.Sgd or last.momentum is not None


def known() -> list[str]:
  """Returns the names of the optimizers with known slots."""
  return sorted(kind.__name__ for kind in (*_SLOTS, *_OTHERS))


@dataclasses.dataclass(frozen=True)
class _Negative:
  """Negates the values of another transform.

  Attributes:
    transform: the other transform.
  """

  transform: Any

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return -self.transform.to_jax(arrays)

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return self.transform.to_lingvo(-array)
