"""Slots: the state of TensorFlow's optimizers per variable, and its names.

A slot's name is the variable's and the optimizer's, numbered in the order of
creation: `lm/w/var/Adam` and `lm/w/var/Adam_1` are the two moments of Adam.
Accumulated gradients have separate names.
"""

import dataclasses
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
_ACCUMULATED = 'acc_grads'
# Supported wrappers of optimizers.
_WRAPPERS = (
  lingvo_optimizers.GroupClipped,
  lingvo_optimizers.InOtherShapes,
  lingvo_optimizers.OnLookedUpRows,
  pax_optimizers.ShardedStaticAccumulator,
)


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
  def _accumulator(self) -> Config | None:
    accumulator = pax_optimizers.ShardedStaticAccumulator
    for config in optimizers.wrapped(self.config):
      if config.cls is accumulator:
        return config
    return None

  def tensors(
    self,
    slot: str,
    variable: Variable,
    names: Sequence[str],
    sizes: Mapping[str, int],
  ) -> tuple[tuple[str, ...], Any] | None:
    """Returns the tensors of a weight's slot in Lingvo's checkpoints.

    Args:
      slot: its name in the state, such as `mu`.
      variable: the weight.
      names: of the Lingvo variables that the weight is made from.
      sizes: numbers of elements by slot of the weight; '' is the weight itself.

    Returns:
      The tensors' names and the transform between them and the slot; None for
      a slot that the optimizer does not use.
    """
    transform = variable.transform
    slots = _SLOTS.get(self.kind)
    if slots is None:
      # Its state has Lingvo's shapes, except for stacked layers.
      transform = Stack() if variable_layout.is_stack(transform) else Identity()
    if slot == _ACCUMULATED:
      return tuple(map(self._accumulated, names)), transform
    last = optimizers.wrapped(self.config)[-1]
    if issubclass(last.cls, lingvo_optimizers.ByVariables):
      suffix = last.slot_names[slot]
      return tuple(f'{name}/{suffix}' for name in names), transform
    if slots is None:
      slots = self._of_adafactor(sizes)
    if slot not in slots:
      return None
    if self.kind is pax_optimizers.RmsProp and slot == 'trace':
      # TensorFlow accumulates what is subtracted, Optax what is added.
      transform = _Negative(transform)
    number = slots.index(slot)
    suffix = f'{self.name}_{number}' if number else self.name
    return tuple(f'{name}/{suffix}' for name in names), transform

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
    if slot == 'sum_of_squares':
      return config.initial_accumulator_value
    if slot == 'nu' and self.kind is pax_optimizers.RmsProp:
      return config.initial_scale
    return 0.0

  def _of_adafactor(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
    momentum = ('m',) if optimizers.wrapped(self.config)[-1].beta1 else ()
    is_whole = sizes['v'] == sizes['']
    return (*momentum, 'v') if is_whole else (*momentum, 'vr', 'vc')

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
  if last.cls is pax_optimizers.OptaxOptimizer:
    grad_tx = last.grad_tx
    is_config = isinstance(grad_tx, fdl.Buildable)
    return is_config and fdl.get_callable(grad_tx) is optax.scale_by_adadelta
  if issubclass(last.cls, lingvo_optimizers.ByVariables):
    is_alone = not optimizers.accumulates(config)
    return is_alone and last.slot_names is not None
  return last.cls in _SLOTS or last.cls is pax_optimizers.ShardedAdafactor


def known() -> list[str]:
  """Returns the names of the optimizers with known slots."""
  return sorted(
    kind.__name__ for kind in (*_SLOTS, pax_optimizers.ShardedAdafactor)
  )


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
