"""Accumulation of gradients over several batches."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from pax_compat import schedules
from pax_compat.config import REQUIRED, Config, class_name, field_values
from pax_compat.config_text import to_text
from pax_compat.optimizers.base import BaseOptimizer, counted


class ShardedStaticAccumulator(BaseOptimizer):
  """Updates weights once in so many batches, by the mean of their gradients.

  Learning rate and schedule may be set here or on the wrapped optimizer. All
  other fields that `BaseOptimizer` has are set here; regularisation and
  clipping then act on the gradients of each batch.

  Attributes:
    optimizer_tpl: the wrapped optimizer.
    num_sub_batches: how many batches make one update.
    accumulation_use_cond_op: how Pax compiles this: only False. Neither value
      has an effect on results.
    schedule_counts_sub_batches: what step the schedule is asked at: the number
      of batches before the one that updates, as in Lingvo's Accumulator, or, by
      default, the number of updates, as in Pax.
    lr_schedule: None takes that of the wrapped optimizer.
    learning_rate: None takes that of the wrapped optimizer.

  Raises:
    UserError: `num_sub_batches` is below 1, or the wrapped optimizer has a
      field set that belongs here.
  """

  optimizer_tpl: Config = REQUIRED
  num_sub_batches: int = 1
  accumulation_use_cond_op: bool = False
  schedule_counts_sub_batches: bool = False
  lr_schedule: Config | None = None

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.num_sub_batches >= 1,
      f'num_sub_batches is {self.num_sub_batches}; 1 or more was expected',
    )
    self.refuse(
      accumulation_use_cond_op='there is one way here to compile it, and it'
      ' gives the same results'
    )
    self._check_base_fields()
    template = self.optimizer_tpl.clone()
    template.set(
      learning_rate=self._one_of(
        'learning_rate', self.learning_rate, template.learning_rate, None
      ),
      lr_schedule=self._one_of(
        'lr_schedule',
        self.lr_schedule or schedules.Constant.config(),
        template.lr_schedule,
        schedules.Constant.config(),
      ),
    )
    if self.schedule_counts_sub_batches:
      template.lr_schedule = _AtSubBatches.config(
        schedule=template.lr_schedule, num_sub_batches=self.num_sub_batches
      )
    self._optimizer = template.Instantiate()

  def _check_base_fields(self):
    """Refuses fields of the wrapped optimizer that a learner would not see."""
    values = field_values(self.optimizer_tpl)
    for field in dataclasses.fields(BaseOptimizer):
      if field.name not in ('learning_rate', 'lr_schedule'):
        self.check(
          values[field.name] == field.default,
          f'{field.name} of the wrapped {class_name(self.optimizer_tpl)} is'
          f' {values[field.name]!r}; set it on {type(self).__name__}',
        )

  def _one_of(self, name, ours, wrapped, default):
    """Returns which of two values is set, if not both are, differently."""
    if _same(wrapped, default) or _same(wrapped, ours):
      return ours
    self.check(
      _same(ours, default),
      f'{name} is set, and that of the wrapped optimizer to something else; set'
      ' one of them',
    )
    return wrapped

  def learning_rate_fn(self):
    of_update = self._optimizer.learning_rate_fn()
    return lambda count: of_update(count // self.num_sub_batches)

  def grad_transformation(self):
    return counted(
      optax.MultiSteps(
        self._optimizer.grad_transformation(), self.num_sub_batches
      ).gradient_transformation()
    )

  def updates_weights(self, count):
    return (count + 1) % self.num_sub_batches == 0

  def reduced_dim(self, name, weight_shape, leaf_shape):
    return self._optimizer.reduced_dim(name, weight_shape, leaf_shape)


class _AtSubBatches(schedules.BaseSchedule):
  """A schedule, asked at an update, that goes by the batches before it.

  Attributes:
    schedule: goes by batches.
    num_sub_batches: how many make one update.
  """

  schedule: Config = REQUIRED
  num_sub_batches: int = 1

  def __post_init__(self):
    self._schedule = self.schedule.Instantiate()

  def value_at(self, count: jax.Array) -> jax.Array:
    batches = jnp.asarray(count) * self.num_sub_batches
    return self._schedule.value_at(batches + self.num_sub_batches - 1)


def _same(a, b) -> bool:
  if isinstance(a, Config) and isinstance(b, Config):
    return to_text(a) == to_text(b)
  return a == b
