"""What TensorFlow's optimizers keep of each variable, and how they call it.

A slot is called by the variable and the optimizer, and numbered in the order of
creation: `lm/w/var/Adam` and `lm/w/var/Adam_1` are the two moments of Adam.
Gradients that wait for more batches have names of their own.
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

# What an optimizer keeps of each variable, in the order of its creation. Of
# Adafactor it depends on the variable.
_SLOTS = {
  pax_optimizers.Adagrad: ('sum_of_squares',),
  pax_optimizers.Adam: ('mu', 'nu'),
  pax_optimizers.OptaxOptimizer: ('e_g', 'e_x'),
  pax_optimizers.RmsProp: ('nu', 'trace'),
  pax_optimizers.Sgd: ('trace',),
}
_WAITING = 'acc_grads'
# What optimizers may be wrapped by.
_WRAPPERS = (
  lingvo_optimizers.GroupClipped,
  lingvo_optimizers.InOtherShapes,
  pax_optimizers.ShardedStaticAccumulator,
)


@dataclasses.dataclass(frozen=True)
class OptimizerFacts:
  """One of a task's optimizers, here and in Lingvo.

  Attributes:
    learner_path: of its learner's state: `opt_state`, or `opt_state.tag` where
      the task is one of several.
    part: what its learner calls it among several; '' for the only one.
    weights: what the paths of its weights begin with, and those in its state do
      not: `task_tag/` where the task is one of several, else nothing.
    theta: likewise of Lingvo's paths of the task's variables: `tag.`.
    config: of the optimizer here.
    name: what TensorFlow calls it and its slots, such as `Adam`.
    scope: what the names of the task's variables begin with, such as `tag/`.
    task: the task's name in Lingvo.
    learner: the name of its learner in Lingvo.
  """

  learner_path: str
  part: str
  weights: str
  theta: str
  config: Config
  name: str
  scope: str
  task: str
  learner: str

  @property
  def path(self) -> str:
    """Of its state, such as `opt_state.optimizer.main`."""
    path = f'{self.learner_path}.optimizer'
    return f'{path}.{self.part}' if self.part else path

  @property
  def kind(self) -> type:
    """The class of the optimizer that moves the weights."""
    return optimizers.wrapped(self.config)[-1].cls

  @property
  def batches_per_update(self) -> int:
    """Of how many batches it collects gradients."""
    found = self._accumulator
    return found.num_sub_batches if found else 1

  @property
  def counts_by_itself(self) -> bool:
    """Whether Lingvo's counts batches, and adds updates to the global step.

    So do those with `num_micro_batches`, and not an `Accumulator`.
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
    """Returns what Lingvo's checkpoints have of a weight's slot.

    Args:
      slot: what the state calls it, such as `mu`.
      variable: the weight.
      names: of the variables that it is made of.
      sizes: how many elements each slot of the weight has, and the weight
        itself, under ''.

    Returns:
      The tensors' names and how the slot is made of them; None for a slot that
      the optimizer does not use.
    """
    transform = variable.transform
    slots = _SLOTS.get(self.kind)
    if slots is None:
      # Its state has Lingvo's shapes, but for layers that are stacked.
      transform = Stack() if variable_layout.is_stack(transform) else Identity()
    if slot == _WAITING:
      return tuple(map(self._waiting, names)), transform
    if slots is None:
      slots = self._of_adafactor(sizes)
    if slot not in slots:
      return None
    if self.kind is pax_optimizers.RmsProp and slot == 'trace':
      # TensorFlow collects what is subtracted, Optax what is added.
      transform = _Negative(transform)
    number = slots.index(slot)
    end = f'{self.name}_{number}' if number else self.name
    return tuple(f'{name}/{end}' for name in names), transform

  def first(self, slot: str) -> float:
    """Returns what the elements of a slot start with."""
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

  def _waiting(self, name: str) -> str:
    if self.counts_by_itself:
      return f'{name}/GradientAccumulator'
    scope = f'{self.scope}{self.task}/{self.learner}'
    return f'{scope}/{name}/grad_accumulator/var'


def is_known(config: Config) -> bool:
  """Whether `OptimizerFacts` tells the slots of an optimizer."""
  *others, last = optimizers.wrapped(config)
  if any(other.cls not in _WRAPPERS for other in others):
    return False
  if last.cls is pax_optimizers.OptaxOptimizer:
    grad_tx = last.grad_tx
    is_config = isinstance(grad_tx, fdl.Buildable)
    return is_config and fdl.get_callable(grad_tx) is optax.scale_by_adadelta
  return last.cls in _SLOTS or last.cls is pax_optimizers.ShardedAdafactor


def known() -> list[str]:
  """Returns the names of the optimizers whose slots are told."""
  return sorted(
    kind.__name__ for kind in (*_SLOTS, pax_optimizers.ShardedAdafactor)
  )


@dataclasses.dataclass(frozen=True)
class _Negative:
  """The values with the other sign.

  Attributes:
    transform: how they correspond otherwise.
  """

  transform: Any

  def to_jax(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return -self.transform.to_jax(arrays)

  def to_lingvo(self, array: np.ndarray) -> list[np.ndarray]:
    return self.transform.to_lingvo(-array)
