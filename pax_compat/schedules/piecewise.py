"""Schedules that are made of pieces."""

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
    boundaries: steps, sorted, at which the value changes.
    values: one before each boundary, and one for the last boundary and after.

  Raises:
    UserError: the boundaries are not sorted, or the numbers do not fit.
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
  """Schedules one after the other, each counting from its own start.

  Attributes:
    boundaries: steps, sorted, at which the next schedule takes over.
    schedules: configs, one more than boundaries.

  Raises:
    UserError: the boundaries are not sorted, or the numbers do not fit.
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
  """Schedules that take turns, again and again.

  Attributes:
    schedules: configs.
    steps: how many steps the turn of each lasts.
    pass_absolute_step: whether each is asked at the step itself; otherwise, as
      in Lingvo's field of this name, at the step within the whole cycle.

  Raises:
    UserError: the numbers do not fit, or a turn is not positive.
  """

  schedules: Sequence[Config] = REQUIRED
  steps: Sequence[int] = REQUIRED
  pass_absolute_step: bool = True

  def __post_init__(self):
    check_lengths(self, 'schedules', len(self.schedules), len(self.steps))
    self.check_positive(**{f'steps[{i}]': n for i, n in enumerate(self.steps)})
    self.check(len(self.steps) > 0, 'schedules is empty; it needs at least one')
    self._built = _build(self.schedules)

  def value_at(self, count):
    *ends, period = itertools.accumulate(self.steps)
    count = jnp.asarray(count)
    within = count % period
    asked = count if self.pass_absolute_step else within
    values = jnp.stack([s.value_at(asked) for s in self._built])
    return values[jnp.sum(within >= jnp.asarray(ends, within.dtype))]


def joined(
  pieces: Sequence[Callable[[jax.Array], jax.Array]],
  boundaries: Sequence[float],
) -> Callable[[jax.Array], jax.Array]:
  """Returns the function that goes through `pieces`, each from its own step 0.

  Args:
    pieces: functions from a step to a value.
    boundaries: at which step each piece but the first begins.
  """
  join = optax.join_schedules(pieces, boundaries)
  # A signed step: a piece that has not begun is asked at a negative one.
  return lambda count: as_float(join(jnp.asarray(count, jnp.int32)))


def check_boundaries(schedule: BaseSchedule, boundaries: Sequence[float]):
  """Raises a UserError unless boundaries are sorted and not negative."""
  schedule.check(
    list(boundaries) == sorted(boundaries) and min(boundaries, default=0) >= 0,
    f'boundaries are {list(boundaries)}; they must be sorted and not negative',
  )


def check_lengths(schedule: BaseSchedule, name: str, count: int, expected: int):
  """Raises a UserError unless a field holds as many items as expected."""
  schedule.check(
    count == expected, f'{name} has {count} items; expected {expected}'
  )


def _build(schedules: Sequence[Config]) -> list[BaseSchedule]:
  return [schedule.Instantiate() for schedule in schedules]
