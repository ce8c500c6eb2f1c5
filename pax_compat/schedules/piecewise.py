"""Piecewise schedules."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from pax_compat.config import REQUIRED, Config
from pax_compat.schedules.base import BaseSchedule, as_float


class PiecewiseConstant(BaseSchedule):
  """Constant between boundaries.

  Attributes:
    boundaries: sorted steps where the value changes.
    values: the value before each boundary, and from the last boundary on.

  Raises:
    UserError: the boundaries are not sorted, or the lengths do not match.
  """

  boundaries: Sequence[float] = REQUIRED
  values: Sequence[float] = REQUIRED

  def __post_init__(self):
    check_boundaries(self, self.boundaries)
    check_lengths(self, 'values', len(self.values), len(self.boundaries) + 1)

  def value_at(self, count):
    boundaries = jnp.asarray(self.boundaries, jnp.float32)
    passed = jnp.sum(as_float(count) >= boundaries)
    return jnp.asarray(self.values, jnp.float32)[passed]


class PiecewiseSchedule(BaseSchedule):
  """A sequence of schedules, each counting steps from its own start.

  Attributes:
    boundaries: sorted steps where the next schedule starts.
    schedules: configs, one more than boundaries.

  Raises:
    UserError: the boundaries are not sorted, or the lengths do not match.
  """

  boundaries: Sequence[int] = REQUIRED
  schedules: Sequence[Config] = REQUIRED

  def __post_init__(self):
    check_boundaries(self, self.boundaries)
    check_lengths(
      self, 'schedules', len(self.schedules), len(self.boundaries) + 1
    )
    built = _build(self.schedules)
    self._value_at = joined([s.value_at for s in built], self.boundaries)

  def value_at(self, count):
    return self._value_at(count)


class CycleSchedule(BaseSchedule):
  """Schedules that repeat in a cycle.

  Attributes:
    schedules: configs.
    steps: number of steps of each schedule in a cycle.
    pass_absolute_step: whether schedules get the step of the run; otherwise, as
      in Lingvo's field of this name, the step within the cycle.

  Raises:
    UserError: the lengths do not match, or a number of steps is not positive.
  """

  schedules: Sequence[Config] = REQUIRED
  steps: Sequence[int] = REQUIRED
  pass_absolute_step: bool = True

  def __post_init__(self):
    check_lengths(self, 'schedules', len(self.schedules), len(self.steps))
    self.check_positive(**{f'steps[{i}]': n for i, n in enumerate(self.steps)})
    self.check(len(self.steps) > 0, 'schedules is empty; expected at least one')
    self._built = _build(self.schedules)

  def value_at(self, count):
    *ends, period = itertools.accumulate(self.steps)
    count = jnp.asarray(count)
    within = count % period
    step = count if self.pass_absolute_step else within
    values = jnp.stack([s.value_at(step) for s in self._built])
    return values[jnp.sum(within >= jnp.asarray(ends, within.dtype))]


def joined(
  pieces: Sequence[Callable[[jax.Array], jax.Array]],
  boundaries: Sequence[float],
) -> Callable[[jax.Array], jax.Array]:
  """Returns the function of a sequence of pieces, each from its own step 0.

  Args:
    pieces: functions from a step to a value.
    boundaries: the start step of each piece except the first.
  """
  join = optax.join_schedules(pieces, boundaries)
  # Signed: a piece that has not started is called with a negative step.
  return lambda count: as_float(join(jnp.asarray(count, jnp.int32)))


def check_boundaries(schedule: BaseSchedule, boundaries: Sequence[float]):
  """Raises a UserError unless boundaries are sorted and not negative."""
  schedule.check(
    list(boundaries) == sorted(boundaries) and min(boundaries, default=0) >= 0,
    f'boundaries are {list(boundaries)}; they must be sorted and not negative',
  )


def check_lengths(schedule: BaseSchedule, name: str, count: int, expected: int):
  """Raises a UserError unless a field has the expected number of items."""
  schedule.check(
    count == expected, f'{name} has {count} items; expected {expected}'
  )


def _build(schedules: Sequence[Config]) -> list[BaseSchedule]:
  return [schedule.Instantiate() for schedule in schedules]
