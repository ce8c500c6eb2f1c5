"""Learning-rate schedules of Lingvo that Pax does not have.

Translated configs contain them, so they do not import Lingvo. s is the step,
starting at 0.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from absl import logging

from pax_compat import errors, schedules
from pax_compat.config import REQUIRED, Config
from pax_compat.schedules.base import as_float


class Minimum(schedules.BaseSchedule):
  """The minimum of several schedules.

  Attributes:
    schedules: configs, at least one.

  Raises:
    UserError: `schedules` is empty.
  """

  schedules: Sequence[Config] = REQUIRED

  def __post_init__(self):
    self.check(len(self.schedules) > 0, 'schedules is empty; set one or more')
    self._built = [schedule.Instantiate() for schedule in self.schedules]

  def value_at(self, count):
    return jnp.min(jnp.stack([s.value_at(count) for s in self._built]))


class StepwiseExponential(schedules.BaseSchedule):
  """decay^floor(s / num_steps_per_decay).

  Attributes:
    decay: the factor of each decay.
    num_steps_per_decay: steps between two decays; positive.

  Raises:
    UserError: `num_steps_per_decay` is not positive.
  """

  decay: float = 0.99
  num_steps_per_decay: float = 1000

  def __post_init__(self):
    self.check_positive(num_steps_per_decay=self.num_steps_per_decay)

  def value_at(self, count):
    decays = jnp.floor(as_float(count) / self.num_steps_per_decay)
    return as_float(self.decay) ** decays


class TransformerMlPerf(schedules.BaseSchedule):
  """Linear rise, then the inverse square root of the step.

  model_dim^-0.5 * min(1, f + (1 - f) * s / w) / sqrt(max(s, w)), w the warm-up
  and f the initial value relative to the peak.

  Attributes:
    warmup_steps: steps of the rise; positive.
    warmup_init_fraction: f.
    model_dim: the model's dims.

  Raises:
    UserError: `warmup_steps` is not positive.
  """

  warmup_steps: int = 4000
  warmup_init_fraction: float = 0.0
  model_dim: int = 512

  def __post_init__(self):
    self.check_positive(warmup_steps=self.warmup_steps)

  def value_at(self, count):
    step, first = as_float(count), self.warmup_init_fraction
    rise = jnp.minimum(1.0, first + (1.0 - first) * step / self.warmup_steps)
    fall = jnp.maximum(step, self.warmup_steps) ** -0.5
    return self.model_dim**-0.5 * rise * fall


class SqrtDecayToZero(schedules.BaseSchedule):
  """Constant, then the inverse square root of the step, shifted down.

  It is 0 at `final_steps`, and negative after it, as Lingvo's is.

  Attributes:
    warmup_steps: the value is constant up to this step; positive.
    starting_lr: the constant value.
    final_steps: the step with value 0; after `warmup_steps`.

  Raises:
    UserError: the steps are not in order.
  """

  warmup_steps: float = 10_000.0
  starting_lr: float = 0.01
  final_steps: float = 100_000.0

  def __post_init__(self):
    self.check(
      0 < self.warmup_steps < self.final_steps,
      f'warmup_steps {self.warmup_steps} and final_steps {self.final_steps}'
      ' must be in this order, and positive',
    )

  def value_at(self, count):
    # Relative to the value at `final_steps`.
    step = jnp.maximum(as_float(count), self.warmup_steps)
    root = jnp.sqrt(self.final_steps / step)
    first = (self.final_steps / self.warmup_steps) ** 0.5
    return self.starting_lr * (root - 1.0) / (first - 1.0)


class InverseSigmoid(schedules.BaseSchedule):
  """k / (k + exp(s / k)), https://arxiv.org/abs/1506.03099.

  Attributes:
    k: 1 or more; the larger, the slower the fall.

  Raises:
    UserError: `k` is below 1.
  """

  k: float = REQUIRED

  def __post_init__(self):
    self.check(self.k >= 1, f'k is {self.k}; it must be 1 or more')

  def value_at(self, count):
    return self.k / (self.k + jnp.exp(as_float(count) / self.k))


class DevBased(schedules.EvaluatedSchedule):
  """Decays when a metric of an evaluation stops improving.

  An evaluation is the best one if its metric is below that of the previous best
  one by more than a tolerance. When the last evaluation is `window` steps or
  more after the best one and after the last decay, the factor decays. As in
  Lingvo's history files, metrics are rounded to six decimals.

  Attributes:
    split: of the evaluation in `metrics.jsonl`, such as `eval_Dev`.
    metric: the metric's name.
    tolerance: the improvement that is ignored.
    window: in steps; positive.
    decay: multiplies the factor, which starts at 1.
    min_factor: the least factor.

  Raises:
    UserError: `window` is not positive.
  """

  split: str = REQUIRED
  metric: str = 'log_pplx'
  tolerance: float = 0.0
  window: int = 10_000
  decay: float = 0.5
  min_factor: float = 0.01

  def __post_init__(self):
    self.check_positive(window=self.window)

  def initial_state(self):
    return dict(
      best_value=np.float32(np.inf),
      best_step=np.int32(0),
      ref_step=np.int32(0),
      cur_factor=np.float32(1),
    )

  def next_state(self, state, step, measured):
    metrics = measured.get(self.split)
    if metrics is None:
      return state
    self.check(
      self.metric in metrics,
      f'metric is {self.metric!r}, which {self.split} does not have'
      + errors.did_you_mean(self.metric, metrics),
    )
    new, value = dict(state), round(metrics[self.metric], 6)
    is_first = np.isinf(state['best_value'])  # Then it is the best so far.
    if is_first or state['best_value'] - value > self.tolerance:
      new |= dict(best_value=value, best_step=step)
    new['ref_step'] = max(state['ref_step'], new['best_step'])
    if step - new['ref_step'] >= self.window:
      decayed = np.float32(state['cur_factor'] * np.float32(self.decay))
      factor = np.maximum(np.float32(self.min_factor), decayed)
      if factor != state['cur_factor']:
        logging.info(
          'step %d: %s/%s has not improved since step %d; the factor of the'
          ' learning rate is now %g',
          step,
          self.split,
          self.metric,
          new['best_step'],
          factor,
        )
        new |= dict(cur_factor=factor, ref_step=step)
    return new

  def value_of(self, state):
    return as_float(state['cur_factor'])


class EmaDecay(schedules.BaseSchedule):
  """min((1 + s) / (10 + s), ema_decay).

  Attributes:
    ema_decay: the limit.
  """

  ema_decay: float = 0.9999

  def value_at(self, count):
    step = as_float(count)
    return jnp.minimum((1.0 + step) / (10.0 + step), self.ema_decay)


class StepOfMicroBatch(schedules.BaseSchedule):
  """Lingvo's global step after the optimizer of a batch, before the task's.

  Attributes:
    num_micro_batches: number of batches of one update, after which the
      optimizer increases the global step.
    counts_updates_only: whether the task does not increase it, too, after each
      batch.
  """

  num_micro_batches: int = 1
  counts_updates_only: bool = False

  def value_at(self, count):
    batches = jnp.asarray(count, jnp.int32)
    updates = (batches + 1) // self.num_micro_batches
    return updates if self.counts_updates_only else batches + updates


class AtLingvoSteps(schedules.BaseSchedule):
  """A schedule of Lingvo's global step, evaluated at updates.

  Attributes:
    schedule: config of the schedule.
    steps_per_update: increment of the global step between updates.
    first: the global step of the first update.
  """

  schedule: Config = REQUIRED
  steps_per_update: int = 1
  first: int = 0

  def __post_init__(self):
    self._schedule = self.schedule.Instantiate()

  def value_at(self, count):
    return self._schedule.value_at(
      jnp.asarray(count, jnp.int32) * self.steps_per_update + self.first
    )
