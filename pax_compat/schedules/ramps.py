"""Schedules with a linear warm-up."""

from collections.abc import Sequence

import jax.numpy as jnp

from pax_compat.config import REQUIRED
from pax_compat.schedules.base import BaseSchedule, as_float
from pax_compat.schedules.curves import (
  Constant,
  DelayedCosine,
  Exponential,
  Linear,
  Polynomial,
)
from pax_compat.schedules.piecewise import (
  PiecewiseConstant,
  check_boundaries,
  check_lengths,
  joined,
)


class RampupAndDecay(BaseSchedule):
  """A linear rise, a plateau, and a decay of a shape that subclasses give.

  Attributes:
    warmup_steps: length of the rise; 0 for none.
    decay_start: step where the decay starts; not before `warmup_steps`.
    decay_end: step from which the value is `max * min_ratio`; not before
      `decay_start`.
    min_ratio: the last value, relative to `max`.
    max: the value between rise and decay; must be set, positive.
    warmup_init: the value at step 0 of a rise. Lingvo's.

  Raises:
    UserError: `max` is not positive, or the steps are not in order.
  """

  warmup_steps: float = 0
  decay_start: float = 0
  decay_end: float = 0
  min_ratio: float = 0.01
  max: float = 0.0
  warmup_init: float = 0.0

  def __post_init__(self):
    self.check_positive(max=self.max)
    self.check(
      0 <= self.warmup_steps <= self.decay_start <= self.decay_end,
      f'warmup_steps {self.warmup_steps}, decay_start {self.decay_start} and'
      f' decay_end {self.decay_end} must be in this order, none negative',
    )
    last = self.max * self.min_ratio
    length = self.decay_end - self.decay_start
    if length:
      decay = self.decay(start=(0, self.max), limit=(length, last))
    else:
      decay = Constant(value=last)
    pieces, boundaries = [], []
    if self.warmup_steps:
      pieces.append(
        Linear(start=(0, self.warmup_init), limit=(self.warmup_steps, self.max))
      )
      boundaries.append(self.warmup_steps)
    pieces += [Constant(value=self.max), decay]
    boundaries.append(self.decay_start)
    self._value_at = joined([p.value_at for p in pieces], boundaries)

  def decay(
    self, start: tuple[float, float], limit: tuple[float, float]
  ) -> BaseSchedule:
    """Returns the schedule from one (step, value) to another."""
    raise NotImplementedError(type(self).__name__)

  def value_at(self, count):
    return self._value_at(count)


class LinearRampupPolynomialDecay(RampupAndDecay):
  """A linear rise, a plateau, and a polynomial decay.

  Attributes:
    power: the exponent; above 1 the decay starts flat.
  """

  power: float = 1

  def decay(self, start, limit):
    return Polynomial(start=start, limit=limit, power=self.power)


class LinearRampupExponentialDecay(RampupAndDecay):
  """A linear rise, a plateau, and an exponential decay.

  Lingvo's schedule of this name is `max=1`, `min_ratio` its `min`.

  Raises:
    UserError: `min_ratio` is not positive.
  """

  def __post_init__(self):
    self.check_positive(min_ratio=self.min_ratio)
    super().__post_init__()

  def decay(self, start, limit):
    return Exponential(start=start, limit=limit)


class LinearRampupCosineDecay(RampupAndDecay):
  """A linear rise, a plateau, and half a period of a cosine down.

  Attributes:
    start_step: other steps count from here. Before it the value is 1, not
      `max`.

  Raises:
    UserError: `start_step` or `min_ratio` is negative.
  """

  start_step: int = 0

  def __post_init__(self):
    for name in ('start_step', 'min_ratio'):
      value = getattr(self, name)
      self.check(value >= 0, f'{name} is {value}; it must not be negative')
    super().__post_init__()

  def decay(self, start, limit):
    return DelayedCosine(start=start, limit=limit)

  def value_at(self, count):
    step = jnp.asarray(count, jnp.int32) - self.start_step
    return jnp.where(step < 0, 1.0, super().value_at(step))


class LinearRampupSqrtDecay(BaseSchedule):
  """A linear rise, then the inverse square root of the step.

  peak * min(t / w, sqrt(w / t)), with warm-up w and t the step, at least 1.

  Attributes:
    peak: the value at `warmup_steps`.
    warmup_steps: length of the rise; positive.

  Raises:
    UserError: `warmup_steps` is not positive.
  """

  peak: float = 1.0
  warmup_steps: int = 4000

  def __post_init__(self):
    self.check_positive(warmup_steps=self.warmup_steps)

  def value_at(self, count):
    step = jnp.maximum(as_float(count), 1.0)
    warmup = float(self.warmup_steps)
    return self.peak * jnp.minimum(step / warmup, jnp.sqrt(warmup / step))


class LinearRampupPiecewiseConstant(BaseSchedule):
  """A linear rise from 0, then constant between boundaries.

  Attributes:
    boundaries: sorted steps; the rise ends at the first.
    values: the value from each boundary to the next. Lingvo calls them `lrs`.
    capped: whether values are at most the first one, as in Lingvo's
      LinearRampupPiecewiseConstantSchedule.

  Raises:
    UserError: boundaries are missing or not sorted, or the lengths do not
      match.
  """

  boundaries: Sequence[float] = REQUIRED
  values: Sequence[float] = REQUIRED
  capped: bool = False

  def __post_init__(self):
    check_boundaries(self, self.boundaries)
    check_lengths(self, 'values', len(self.values), len(self.boundaries))
    self.check(
      len(self.boundaries) > 0, 'boundaries is empty; expected one or more'
    )
    self._constants = PiecewiseConstant(
      boundaries=self.boundaries, values=[0.0, *self.values]
    )

  def value_at(self, count):
    step, end, top = as_float(count), self.boundaries[0], self.values[0]
    value = self._constants.value_at(count)
    if self.capped:
      value = jnp.minimum(value, top)
    # The first boundary may be 0: no rise.
    return jnp.where(step < end, top * step / max(end, 1), value)
