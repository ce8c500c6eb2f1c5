"""Accumulation of gradients over several batches."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pax_compat import errors, schedules
from pax_compat.config import REQUIRED, Config, class_name, field_values
from pax_compat.configs.config_text import to_text
from pax_compat.optimizers.base import BaseOptimizer, counted

_RATE = ('learning_rate', 'lr_schedule')


class Accumulator(BaseOptimizer):
  """Base of optimizers that accumulate the gradients of several batches.

  Learning rate and schedule are set here or on the wrapped optimizer. All other
  fields of `BaseOptimizer` are set here; regularization and clipping act on the
  gradients of each batch.

  Attributes:
    optimizer_tpl: the wrapped optimizer.
    lr_schedule: None takes that of the wrapped optimizer.
    learning_rate: None takes that of the wrapped optimizer.

  Raises:
    UserError: the wrapped optimizer has a field set that must be set here.
  """

  optimizer_tpl: Config = REQUIRED
  lr_schedule: Config | None = None

  def __post_init__(self):
    super().__post_init__()
    check_common_fields(self, self.optimizer_tpl, *_RATE)
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
    self._optimizer = self._adapted(template).Instantiate()

  def _adapted(self, template: Config) -> Config:
    """Returns the template of the wrapped optimizer, which has its rate."""
    return template

  def _one_of(self, name, ours, wrapped, default):
    """Returns the value that is set; refuses two different ones."""
    if _same(wrapped, default) or _same(wrapped, ours):
      return ours
    self.check(
      _same(ours, default),
      f'{name} is set, and the wrapped optimizer has another one; set one of'
      ' them',
    )
    return wrapped

  def reduced_dim(self, name, weight_shape, leaf_shape):
    return self._optimizer.reduced_dim(name, weight_shape, leaf_shape)

  def own_spec(self, name, leaf_shape, mesh):
    return self._optimizer.own_spec(name, leaf_shape, mesh)

  def metrics(self, state):
    return self._optimizer.metrics(state)


class ShardedStaticAccumulator(Accumulator):
  """Updates weights once in N batches, by the mean of their gradients.

  Attributes:
    num_sub_batches: N, the number of batches of one update.
    collects_means: whether gradients are divided by N before they are
      accumulated; by default their sum is accumulated, as in Pax.
    accumulation_use_cond_op: how Pax compiles this; only False. Neither value
      changes results.
    schedule_counts_sub_batches: whether the step of the schedule is the number
      of batches before the one that updates, as in Lingvo's Accumulator; by
      default it is the number of updates, as in Pax.

  Raises:
    UserError: `num_sub_batches` is below 1.
  """

  num_sub_batches: int = 1
  collects_means: bool = False
  accumulation_use_cond_op: bool = False
  schedule_counts_sub_batches: bool = False

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.num_sub_batches >= 1,
      f'num_sub_batches is {self.num_sub_batches}; expected 1 or more',
    )
    self.refuse(
      accumulation_use_cond_op='accumulation is always compiled the same way,'
      ' with the same results'
    )

  def _adapted(self, template):
    if self.schedule_counts_sub_batches:
      template.lr_schedule = _AtSubBatches.config(
        schedule=template.lr_schedule, num_sub_batches=self.num_sub_batches
      )
    return template

  def learning_rate_fn(self):
    of_update = self._optimizer.learning_rate_fn()
    return lambda count: of_update(count // self.num_sub_batches)

  def grad_transformation(self):
    optimizer = self._optimizer.grad_transformation()
    if not self.collects_means:
      optimizer = self._of_means(optimizer)
    accumulating = optax.MultiSteps(
      optimizer, self.num_sub_batches, use_grad_mean=False
    ).gradient_transformation()
    if self.collects_means:
      accumulating = self._of_means(accumulating)
    return counted(accumulating)

  def _of_means(
    self, transformation: optax.GradientTransformation
  ) -> optax.GradientTransformation:
    """Returns a transformation that first divides gradients by N."""

    def update(gradients, state, weights=None):
      means = jax.tree.map(lambda g: g / self.num_sub_batches, gradients)
      return transformation.update(means, state, weights)

    return optax.GradientTransformation(transformation.init, update)

  def updates_weights(self, count):
    return (count + 1) % self.num_sub_batches == 0


class WeightSums(NamedTuple):
  """Sums since the last update.

  Attributes:
    weight: [], the sum of loss weights.
    gradients: the sums of gradients times loss weights, a tree like the
      weights.
    wrapped: state of the wrapped optimizer.
  """

  weight: jax.Array
  gradients: Any
  wrapped: Any


class Updates(NamedTuple):
  """Number of updates of the weights.

  Attributes:
    count: [], int.
  """

  count: jax.Array


class WeightedAccumulator(Accumulator):
  """Updates weights when the loss weights of batches add up to a minimum.

  The update is by the mean of gradients, weighted by the weight of the batch's
  loss, such as its number of examples or tokens. The schedule counts updates.

  Attributes:
    min_weight: the least sum of loss weights of an update.

  Raises:
    UserError: `min_weight` is not positive, or a field is set that depends on
      which steps update weights, which is not known in advance.
  """

  min_weight: float = REQUIRED

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.min_weight > 0,
      f'min_weight is {self.min_weight}; it must be positive',
    )
    unknown = 'which steps update weights is not known in advance'
    self.refuse(decoupled_weight_decay=unknown)

  def check_knows_updates(self, field):
    raise errors.UserError(
      f'{type(self).__name__}.{field} is {getattr(self, field)}, which is not'
      ' supported: which steps update weights is not known in advance; expected'
      ' ema_every_step=True of the learner with it'
    )

  def check_supports_no_op_steps(self):
    raise errors.UserError(
      f'{type(self).__name__}: it does not support no-op steps, which tasks'
      ' make while another one is trained: it counts its updates only; expected'
      ' another optimizer'
    )

  def learning_rate_fn(self):
    return self._optimizer.learning_rate_fn()

  def grad_transformation(self):
    """Returns the transformation, whose `count` is the number of updates.

    Its update takes `loss_weight` [], the weight of the batch's loss, by
    default 1.
    """
    wrapped = optax.with_extra_args_support(
      self._optimizer.grad_transformation()
    )

    def init(weights):
      sums = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), weights)
      first = WeightSums(jnp.zeros([]), sums, wrapped.init(weights))
      return first, Updates(jnp.zeros([], jnp.int32))

    def update(gradients, state, params=None, *, loss_weight=1.0, **others):
      old, updates = state
      weight = old.weight + jnp.asarray(loss_weight, jnp.float32)
      sums = jax.tree.map(
        lambda a, g: a + loss_weight * g.astype(jnp.float32),
        old.gradients,
        gradients,
      )

      def updated():
        means = jax.tree.map(
          lambda a, g: (a / weight).astype(g.dtype), sums, gradients
        )
        moves, own = wrapped.update(
          means, old.wrapped, params, loss_weight=weight, **others
        )
        moves = jax.tree.map(lambda m, g: m.astype(g.dtype), moves, gradients)
        empty = jax.tree.map(jnp.zeros_like, sums)
        next_count = optax.safe_increment(updates.count)
        return moves, WeightSums(jnp.zeros([]), empty, own), next_count

      def accumulated():
        zeros = jax.tree.map(jnp.zeros_like, gradients)
        return zeros, WeightSums(weight, sums, old.wrapped), updates.count

      moves, new, count = jax.lax.cond(
        weight >= self.min_weight, updated, accumulated
      )
      return moves, (new, Updates(count))

    return optax.GradientTransformationExtraArgs(init, update)


class _AtSubBatches(schedules.BaseSchedule):
  """Converts the step of a schedule from updates to batches.

  Attributes:
    schedule: a schedule over batches.
    num_sub_batches: number of batches of one update.
  """

  schedule: Config = REQUIRED
  num_sub_batches: int = 1

  def __post_init__(self):
    self._schedule = self.schedule.Instantiate()

  def value_at(self, count: jax.Array) -> jax.Array:
    batches = jnp.asarray(count) * self.num_sub_batches
    return self._schedule.value_at(batches + self.num_sub_batches - 1)


def check_common_fields(owner: BaseOptimizer, template: Config, *own: str):
  """Refuses fields of a wrapped optimizer that a learner would ignore.

  Args:
    owner: the wrapping optimizer.
    template: the wrapped optimizer.
    *own: fields that may be set.

  Raises:
    UserError: another field of `BaseOptimizer` is set.
  """
  values = field_values(template)
  defaults = field_values(Config(BaseOptimizer))
  for name, default in defaults.items():
    if name not in own:
      owner.check(
        _same(values[name], default),
        f'{name} of the wrapped {class_name(template)} is'
        f' {values[name]!r}; set it on {type(owner).__name__}',
      )


def _same(a, b) -> bool:
  if isinstance(a, Config) and isinstance(b, Config):
    return to_text(a) == to_text(b)
  return a == b
