"""Schedules that depend on evaluations, and their state in a training step.

A learner keeps the state of its schedules, so that a run that continues goes on
with it. The run updates it after evaluations; the compiled step only reads it.
"""

import contextlib
import contextvars
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from fiddle import daglish

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.config_core import context_values
from pax_compat.schedules.base import BaseSchedule

# Scalars by name.
State = dict[str, Any]

_states = contextvars.ContextVar('states', default=None)


class EvaluatedSchedule(BaseSchedule):
  """A schedule that depends on the metrics of evaluations.

  A subclass implements `initial_state`, `next_state` and `value_of`.

  Attributes:
    key: name of its state in that of a learner; schedules of the same key must
      be equal.
  """

  key: str = 'evaluated'

  def initial_state(self) -> State:
    """Returns the state before the first evaluation: numpy scalars by name."""
    raise NotImplementedError(type(self).__name__)

  def next_state(
    self, state: State, step: int, measured: Mapping[str, Mapping[str, float]]
  ) -> State:
    """Returns the state after evaluations.

    Args:
      state: numpy scalars.
      step: number of steps made.
      measured: scalars of the evaluations, by split (`eval_Dev`) and name.
    """
    raise NotImplementedError(type(self).__name__)

  def value_of(self, state: State) -> jax.Array:
    """Returns the factor [] in a state."""
    raise NotImplementedError(type(self).__name__)

  def value_at(self, count):
    del count
    state = (_states.get() or {}).get(self.key)
    return self.value_of(self.initial_state() if state is None else state)


def states(by_key: Mapping[str, State]) -> contextlib.AbstractContextManager:
  """Within it, schedules have these states, by key."""
  return context_values.set_within(_states, by_key)


def configs_within(config: Any) -> list[config_lib.Config]:
  """Returns the configs of such schedules within a config."""
  return [
    node
    for node, _ in daglish.iterate(config)
    if isinstance(node, config_lib.Config)
    and isinstance(node.cls, type)
    and issubclass(node.cls, EvaluatedSchedule)
  ]


def schedules_within(*configs: Any) -> dict[str, EvaluatedSchedule]:
  """Returns the schedules within configs, by key.

  Raises:
    UserError: two different ones have the same key.
  """
  found: dict[str, config_lib.Config] = {}
  for config in configs:
    for one in configs_within(config):
      if found.setdefault(one.key, one) != one:
        raise errors.UserError(
          f'{config_lib.class_name(one)}.key is {one.key!r} in two schedules'
          ' that differ; expected another key for each of them'
        )
  return {key: one.Instantiate() for key, one in found.items()}


def next_states(
  schedules: Mapping[str, EvaluatedSchedule],
  old: Mapping[str, State],
  step: int,
  measured: Mapping[str, Mapping[str, float]],
) -> dict[str, State]:
  """Returns the states of a learner's schedules after evaluations.

  Args:
    schedules: by key.
    old: their states, on the devices.
    step: number of steps made.
    measured: see `EvaluatedSchedule.next_state`.
  """
  result = {}
  for key, before in old.items():
    now = {name: np.asarray(x) for name, x in before.items()}
    after = schedules[key].next_state(now, step, measured)
    result[key] = {
      name: _like(x, np.asarray(after[name], x.dtype))
      for name, x in before.items()
    }
  return result


def _like(array: jax.Array, value: np.ndarray) -> jax.Array:
  """Returns a value with the sharding of an array."""
  return jax.make_array_from_callback(
    value.shape, array.sharding, lambda index: value[index]
  )
