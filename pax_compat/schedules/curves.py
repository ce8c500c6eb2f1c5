"""Schedules with one formula."""

import math

import jax.numpy as jnp

from pax_compat.schedules.base import BaseSchedule, as_float


class Constant(BaseSchedule):
  """A constant factor.

  Attributes:
    value: the factor.
  """

  value: float = 1.0

  def value_at(self, count):
    del count
    return jnp.full([], self.value, jnp.float32)


class Polynomial(BaseSchedule):
  """A power of the step between two points, and constant outside.

  Attributes:
    power: the exponent.
    start: step x0 and value y0 of the first point.
    limit: step x1, beyond x0, and value y1 of the last point.
    origin: the point where the polynomial is flat if its power is above 1:
      'start' for y0 + r^power * (y1 - y0), with r = (x - x0) / (x1 - x0);
      'limit' for y0 + (1 - (1 - r)^power) * (y1 - y0).

  Raises:
    UserError: the points are not pairs in order, or `origin` is invalid.
  """

  power: float = 1
  start: tuple[float, float] = (0, 1.0)
  limit: tuple[float, float] = (1, 1.0)
  origin: str = 'start'

  def __post_init__(self):
    _check_points(self)
    self.check(
      self.origin in ('start', 'limit'),
      f"origin is {self.origin!r}; expected one of 'start', 'limit'",
    )

  def value_at(self, count):
    (x0, y0), (x1, y1) = self.start, self.limit
    ratio = jnp.clip((as_float(count) - x0) / (x1 - x0), 0.0, 1.0)
    if self.origin == 'start':
      curve = ratio**self.power
    else:
      curve = 1 - (1 - ratio) ** self.power
    # Exactly the last value, without rounding.
    return jnp.where(ratio >= 1, jnp.float32(y1), y0 + curve * (y1 - y0))


class Linear(Polynomial):
  """A straight line between two points, and constant outside."""


class Exponential(BaseSchedule):
  """Exponential between two points, and constant outside.

  Attributes:
    start: step x0 and value y0 > 0 of the first point.
    limit: step x1, beyond x0, and value y1 > 0 of the last point.

  Raises:
    UserError: the points are not pairs in order, or a value is not positive.
  """

  start: tuple[float, float] = (0, 1.0)
  limit: tuple[float, float] = (1, 0.5)

  def __post_init__(self):
    _check_points(self)
    (x0, y0), (x1, y1) = self.start, self.limit
    self.check_positive(**{'start[1]': y0, 'limit[1]': y1})
    self._logarithm = Linear(start=(x0, math.log(y0)), limit=(x1, math.log(y1)))

  def value_at(self, count):
    return jnp.exp(self._logarithm.value_at(count))


class ContinuousSchedule(BaseSchedule):
  """Constant, then exponential decay by half-lives, down to a minimum.

  Attributes:
    initial_value: the value until `start_step`.
    start_step: the step where the decay starts.
    half_life_steps: number of steps in which the value halves.
    min: the minimum, relative to `initial_value`; in (0, 1).

  Raises:
    UserError: `min` or `half_life_steps` is out of its range.
  """

  initial_value: float = 1.0
  start_step: int = 400_000
  half_life_steps: float = 100_000
  min: float = 0.01

  def __post_init__(self):
    self.check_positive(half_life_steps=self.half_life_steps)
    self.check(0 < self.min < 1, f'min is {self.min}; it must be in (0, 1)')
    fall = self.half_life_steps * math.log(self.min) / math.log(0.5)
    self._fall = Exponential(
      start=(self.start_step, 1.0), limit=(self.start_step + fall, self.min)
    )

  def value_at(self, count):
    return self.initial_value * self._fall.value_at(count)


class Cosine(BaseSchedule):
  """Half a period of a cosine, from step 0 on.

  Attributes:
    initial_value: value at step 0.
    final_value: value at `total_steps`, and after it unless `cyclical`.
    total_steps: length of the half period; must be set.
    cyclical: whether the curve repeats after `total_steps`. This and
      `half_cycle` are Lingvo's.
    half_cycle: whether it restarts from `initial_value`; otherwise it rises
      back to it along the cosine. Only for `cyclical`.

  Raises:
    UserError: `total_steps` is not positive.
  """

  initial_value: float = 1.0
  final_value: float = 0.0
  total_steps: int = 0
  cyclical: bool = False
  half_cycle: bool = True

  def __post_init__(self):
    self.check_positive(total_steps=self.total_steps)

  def value_at(self, count):
    count = jnp.asarray(count)
    if not self.cyclical:
      count = jnp.minimum(count, self.total_steps)
    elif self.half_cycle:
      count = count % self.total_steps
    else:
      count = count % (2 * self.total_steps)
    angle = math.pi * as_float(count) / self.total_steps
    gap = self.initial_value - self.final_value
    return self.final_value + 0.5 * gap * (1 + jnp.cos(angle))


class DelayedCosine(BaseSchedule):
  """Half a period of a cosine between two points, and constant outside.

  Attributes:
    start: step x0 and value y0 > 0 of the first point.
    limit: step x1, beyond x0, and value y1 >= 0 of the last point.

  Raises:
    UserError: the points are not pairs in order, or a value is out of range.
  """

  start: tuple[float, float] = (0, 1.0)
  limit: tuple[float, float] = (1, 0.5)

  def __post_init__(self):
    _check_points(self)
    (x0, y0), (x1, y1) = self.start, self.limit
    self.check_positive(**{'start[1]': y0})
    self.check(y1 >= 0, f'limit[1] is {y1}; it must not be negative')
    self._angle = Linear(start=(x0, 0.0), limit=(x1, math.pi))

  def value_at(self, count):
    high, low = self.start[1], self.limit[1]
    angle = self._angle.value_at(count)
    return low + 0.5 * (high - low) * (1 + jnp.cos(angle))


class SqrtDecay(BaseSchedule):
  """Constant, then the inverse square root of the step.

  multiplier / sqrt(max(t - offset, decay_start)).

  Attributes:
    decay_start: the value is constant until this step, counted from `offset`;
      positive. Lingvo calls it `warmup_steps`.
    multiplier: multiplies the value.
    offset: shifts the curve to the right.

  Raises:
    UserError: `decay_start` is not positive.
  """

  decay_start: float = 10_000
  multiplier: float = 1.0
  offset: float = 0.0

  def __post_init__(self):
    self.check_positive(decay_start=self.decay_start)

  def value_at(self, count):
    step = jnp.maximum(as_float(count) - self.offset, self.decay_start)
    return self.multiplier / jnp.sqrt(step)


class Transformer(BaseSchedule):
  """Linear rise, then a power of the step, as in Lingvo's TransformerSchedule.

  model_dim^-0.5 * min((t + 1) * w^(decay_factor - 1),
  (t + start_step + 1)^decay_factor), with warm-up w.
  https://arxiv.org/abs/1706.03762

  Attributes:
    warmup_steps: steps of the rise; 0 for none.
    model_dim: the model's dimension.
    worker_replicas: multiplies the warm-up.
    decay_end: the factor is constant from this step on; None for never.
    decay_factor: the exponent. This and the following fields are Lingvo's.
    start_step: shifts the decay to the left.
    cyclical_step: the schedule restarts after this many steps; None for never.
  """

  warmup_steps: int = 4000
  model_dim: int = 512
  worker_replicas: int = 1
  decay_end: int | None = None
  decay_factor: float = -0.5
  start_step: int = 0
  cyclical_step: int | None = None

  def value_at(self, count):
    if self.cyclical_step is not None:
      count = jnp.asarray(count) % self.cyclical_step
    step = as_float(count)
    if self.decay_end is not None:
      step = jnp.minimum(step, float(self.decay_end))
    # An array, where 0 to a negative power is infinite and not an error.
    warmup = as_float(self.warmup_steps * self.worker_replicas)
    rise = (step + 1) * warmup ** (self.decay_factor - 1.0)
    fall = (step + self.start_step + 1) ** self.decay_factor
    return self.model_dim**-0.5 * jnp.minimum(rise, fall)


def _check_points(schedule):
  """Raises a UserError unless `start` and `limit` are pairs in order."""
  for name in ('start', 'limit'):
    point = getattr(schedule, name)
    schedule.check(
      len(point) == 2, f'{name} is {point}; expected a pair (step, value)'
    )
  x0, x1 = schedule.start[0], schedule.limit[0]
  schedule.check(
    x0 < x1, f'step {x0} of start must be before step {x1} of limit'
  )
