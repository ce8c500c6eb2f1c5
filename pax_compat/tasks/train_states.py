"""The state of training as loops that call Pax's step functions hold it."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax

from pax_compat import base_layer, errors, learners

__all__ = [
  'TensorProvenance',
  'TrainState',
  'TrainStateProvenance',
  'build_train_state_provenance',
  'extract_ema',
  'has_ema',
]

_RANDOM = 'random_init'


class TrainState(flax.struct.PyTreeNode):
  """What changes while a task is trained; also shapes or shardings of it.

  Attributes:
    step: [], int32, number of steps made.
    mdl_vars: the model's variables by collection.
    opt_states: the states of the learners; empty for evaluations.
    extra_state: whatever else a loop keeps.
  """

  step: Any
  mdl_vars: Any
  opt_states: list[Any]
  extra_state: Any = ()

  def new_state(
    self, mdl_vars: Any, opt_states: list[Any], extra_state: Any = ()
  ) -> TrainState:
    """Returns the state after one more step."""
    return TrainState(self.step + 1, mdl_vars, list(opt_states), extra_state)

  def to_eval_state(self) -> TrainState:
    """Returns the state without those of the learners."""
    return TrainState(self.step, self.mdl_vars, [])


def has_ema(task: Any) -> bool:
  """Whether a `SingleTask` keeps a moving average of the weights."""
  return task.has_ema_decay


def extract_ema(
  model_states: TrainState, merge_for_bprop_exclusion: bool = True
) -> TrainState:
  """Returns a state whose weights are their moving averages.

  Args:
    model_states: a state of training.
    merge_for_bprop_exclusion: whether weights that are not trained stay as they
      are; they have no average. Only True is supported.

  Returns:
    A state without those of the learners. Averages are in float32.

  Raises:
    UserError: the average is missing, or the argument is False.
  """
  [state] = model_states.opt_states or [None]
  if getattr(state, 'average', None) is None:
    raise errors.UserError(
      'extract_ema: the state has no moving average of the weights; expected a'
      ' state of training, and an optimizer with ema_decay above 0'
    )
  if not merge_for_bprop_exclusion:
    raise errors.UserError(
      'extract_ema(merge_for_bprop_exclusion=False) is not supported: weights'
      ' without an average are those of the state'
    )
  mdl_vars = dict(model_states.mdl_vars)
  trees = {base_layer.PARAMS: state.average.ema}
  for name, tree in {**trees, **(state.average.variables or {})}.items():
    averages = learners.by_path(tree)
    mdl_vars[name] = learners.replace_leaves(mdl_vars[name], averages)
  return TrainState(model_states.step, mdl_vars, [])


@dataclasses.dataclass
class TensorProvenance:
  """Where the value of an array is from.

  Attributes:
    checkpoint_path: the checkpoint, or `random_init`.
    checkpoint_step: its step; None for its latest one.
  """

  checkpoint_path: str = _RANDOM
  checkpoint_step: int | None = None

  def __repr__(self) -> str:
    step = self.checkpoint_step
    if self.checkpoint_path == _RANDOM:
      return f'"({self.checkpoint_path})"'
    return f'"({self.checkpoint_path}:{"latest" if step is None else step})"'


@dataclasses.dataclass
class TrainStateProvenance:
  """Where each array of a `TrainState` is from; the fields are alike."""

  step: TensorProvenance
  mdl_vars: Any
  opt_states: Any
  extra_state: Any

  def replace(self, **changes: Any) -> TrainStateProvenance:
    """Returns a copy with other fields."""
    return dataclasses.replace(self, **changes)


def build_train_state_provenance(
  train_state: TrainState,
  checkpoint_path: str | None = None,
  step: int | None = None,
) -> TrainStateProvenance:
  """Returns one provenance for all arrays of a state.

  Args:
    train_state: the state.
    checkpoint_path: the checkpoint; None for random values.
    step: its step.
  """
  source = TensorProvenance()
  if checkpoint_path:
    source = TensorProvenance(checkpoint_path, step)
  return TrainStateProvenance(
    source,
    *(
      jax.tree.map(lambda _: source, tree)
      for tree in (
        train_state.mdl_vars,
        train_state.opt_states,
        train_state.extra_state,
      )
    ),
  )
