"""Base of optimizers: regularization, clipping, learning rate, contract.

An optimizer returns an optax transformation and its properties for the learner.
The learner applies the fields that need all weights or their metadata:
regularization, decoupled decay, clipping, the moving average.

State. Every transformation keeps its state of weights in trees with the keys of
the weights. By these keys `learners.state.state_leaves` finds the leaves that
belong to a weight; others, such as counts, belong to no weight. A leaf of a
weight has one of three shapes:

* the weight's shape: it is sharded like the weight;
* the weight's shape without one dimension, `BaseOptimizer.reduced_dim`: it is
  sharded like the weight, without this dimension's entry;
* any other, such as a [1] for a weight without such a leaf: it is replicated,
  unless `BaseOptimizer.own_spec` says how it is sharded.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from pax_compat import config as config_lib
from pax_compat import errors, schedules
from pax_compat.config import Config, sub_config_field
from pax_compat.optimizers import chained, elastic, sharded


class BaseOptimizer(config_lib.Configurable):
  """Base of all optimizers.

  A subclass implements `direction`, or `grad_transformation` if the learning
  rate is applied inside; or `_get_raw_grad_transformation(learning_rate_fn)`,
  as optimizers written for Pax do.

  Attributes:
    l2_regularizer_weight: if set, this times a weight is added to its gradient.
    l1_regularizer_weight: if set, this times the sign of a weight is added to
      its gradient. Together with L2 only if the learner has
      `regularize_before_clipping`.
    skip_lp_1d_vectors: whether weights of rank 0 and 1 are exempt from L1 and
      L2.
    decoupled_weight_decay: if set, this times the learning rate times a weight
      is subtracted from it in each step that updates weights. Not together with
      L1 or L2. Weights marked to skip regularization are exempt.
    clip_gradient_norm_to_value: if positive, all gradients are scaled down
      together so that their global norm is at most this.
    clip_gradient_single_norm_to_value: if positive, each gradient is scaled
      down so that its own norm is at most this. Not together with the above.
    learning_rate: the base rate, multiplied by the schedule. It must be set.
    lr_schedule: the factor of the rate at each step.
    ema_decay: if positive, the decay of a moving average of the weights; below
      1.
    ewc_regularizer_weight: if positive, the weight of elastic weight
      consolidation: weights are pulled to where they were at the first step;
      see `elastic`. Not for optimizers that accumulate gradients.
    ewc_weight_per_var: factors of `ewc_regularizer_weight`, a number or an
      array for each weight, in a tree with the keys of the weights; None for 1.

  Raises:
    UserError: fields that exclude each other, a decay of 1 or more, or a field
      that is not supported.
  """

  l2_regularizer_weight: float | None = None
  l1_regularizer_weight: float | None = None
  skip_lp_1d_vectors: bool = False
  decoupled_weight_decay: float | None = None
  clip_gradient_norm_to_value: float = 0.0
  clip_gradient_single_norm_to_value: float = 0.0
  learning_rate: float | None = None
  lr_schedule: Config = sub_config_field(schedules.Constant)
  ema_decay: float = 0.0
  ewc_regularizer_weight: float = 0.0
  ewc_weight_per_var: Any = None

  def __post_init__(self):
    self._exclude('decoupled_weight_decay', 'l1_regularizer_weight')
    self._exclude('decoupled_weight_decay', 'l2_regularizer_weight')
    self._exclude(
      'clip_gradient_norm_to_value', 'clip_gradient_single_norm_to_value'
    )
    self.check(
      self.ema_decay < 1, f'ema_decay is {self.ema_decay}; expected below 1'
    )
    self.check(
      self.ewc_regularizer_weight >= 0,
      f'ewc_regularizer_weight is {self.ewc_regularizer_weight}; expected 0 or'
      ' more',
    )
    self.check(
      not self.ewc_regularizer_weight
      or type(self).updates_weights is BaseOptimizer.updates_weights,
      'ewc_regularizer_weight is not supported by optimizers that accumulate'
      ' gradients',
    )
    self.check(
      self.ewc_weight_per_var is None or self.ewc_regularizer_weight > 0,
      'ewc_weight_per_var is set, and ewc_regularizer_weight is 0; expected a'
      ' positive number with it',
    )

  def refuse(self, **reasons: str):
    """Raises a UserError where a field is set that is not supported.

    Args:
      **reasons: by field, why it is not supported, or what to use instead.
    """
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name in reasons and value != field.default:
        raise errors.UserError(
          f'{type(self).__name__}.{field.name} is {value!r}, expected'
          f' {field.default!r}: {reasons[field.name]}'
        )

  def check_one_regularizer(self):
    """Raises a UserError if both L1 and L2 regularization are set."""
    self._exclude('l1_regularizer_weight', 'l2_regularizer_weight')

  def _exclude(self, one: str, other: str):
    both = getattr(self, one) and getattr(self, other)
    self.check(not both, f'{one} and {other} exclude each other; set one')

  def learning_rate_fn(self) -> Callable[[jax.Array], jax.Array]:
    """Returns the function from the step to the learning rate.

    Raises:
      UserError: `learning_rate` is not set, or the schedule is invalid.
    """
    self.check(
      self.learning_rate is not None,
      'learning_rate is not set; expected a number',
    )
    schedule = self.lr_schedule.Instantiate()
    return lambda count: self.learning_rate * schedule.value_at(count)

  def get_learning_rate(self, step_count: jax.Array) -> jax.Array:
    """Returns the learning rate [] after a number of steps."""
    return jnp.asarray(self.learning_rate_fn()(step_count))

  def grad_transformation(self) -> optax.GradientTransformation:
    """Returns the transformation from gradients to updates of the weights.

    It applies the learning rate. Its state is a tuple, whose last item has
    `count`, the number of steps so far: the argument of `learning_rate_fn`.
    """
    raw = getattr(self, '_get_raw_grad_transformation', None)
    if raw is not None:  # A subclass written for Pax.
      return counted(sharded.as_optax(raw(self.learning_rate_fn())))
    return optax.chain(
      self.direction(),
      optax.scale_by_learning_rate(self.learning_rate_fn()),
    )

  def whole_transformation(self) -> optax.GradientTransformation:
    """Returns `grad_transformation` with elastic weight consolidation.

    The state is as that of `grad_transformation`, if that is not set.
    """
    made = self.grad_transformation()
    if not self.ewc_regularizer_weight:
      return made
    return elastic.consolidated(
      made,
      self.learning_rate_fn(),
      self.ewc_regularizer_weight,
      self.ewc_weight_per_var,
    )

  def get_grad_transformation(
    self, var_weight_hparams: Any = None, include_ema: bool = True
  ) -> optax.GradientTransformation:
    """Returns `whole_transformation` with regularization and decay.

    The learner does not use it; it does the same itself.

    Args:
      var_weight_hparams: the `WeightHParams` of the weights, of which those
        that skip regularization are exempt; None for none.
      include_ema: whether an average of the weights is kept; see Raises.

    Raises:
      UserError: `ema_decay` is set; the learner keeps the average.
    """
    return chained.transformation(self, var_weight_hparams, include_ema)

  def direction(self) -> optax.GradientTransformation:
    """Returns the transformation before the learning rate is applied."""
    raise NotImplementedError(type(self).__name__)

  def updates_weights(self, count: jax.Array) -> jax.Array:
    """Returns a bool []: False if the step only accumulates gradients.

    Decoupled decay is applied only in steps that update weights.

    Args:
      count: [], number of steps before.
    """
    return jnp.ones_like(count, bool)

  def check_knows_updates(self, field: str):  # noqa: B027 (most know them)
    """Raises a UserError unless `updates_weights` is known in advance.

    Args:
      field: the field that depends on it, for the message.
    """

  def check_supports_no_op_steps(self):
    """Raises a UserError if the optimizer does not support no-op steps.

    It does if the learning rate is applied last. See `no_op_step`.
    """
    self.check(
      type(self).grad_transformation is BaseOptimizer.grad_transformation,
      'it does not support no-op steps, which tasks make while another one is'
      ' trained; expected an optimizer that applies its learning rate last,'
      ' such as Adam or Sgd',
    )

  def no_op_step(self, state: Any) -> Any:
    """Returns the state after a no-op step, which does not train its weights.

    Only the count changes, which the learning rate depends on.

    Args:
      state: state of `grad_transformation`.
    """
    return increment_count(state)

  def reduced_dim(
    self, name: str, weight_shape: Sequence[int], leaf_shape: Sequence[int]
  ) -> int | None:
    """Returns the dimension of a weight that one of its state leaves lacks.

    Args:
      name: the last attribute in the leaf's path in the state.
      weight_shape: shape of the weight.
      leaf_shape: shape of the leaf, one dimension less.

    Returns:
      The dimension, or None if it is ambiguous (the leaf is replicated).
    """
    del name
    dims = [
      dim
      for dim in range(len(weight_shape))
      if without_dim(weight_shape, dim) == tuple(leaf_shape)
    ]
    return dims[0] if len(dims) == 1 else None

  def own_spec(
    self, name: str, leaf_shape: Sequence[int], mesh: Any
  ) -> PartitionSpec | None:
    """Returns the sharding of a leaf that is not sharded like its weight.

    Args:
      name: the last attribute in the leaf's path in the state.
      leaf_shape: shape of the leaf, of a single layer.
      mesh: the mesh.

    Returns:
      The spec, or None for a leaf that is sharded by the rules above.
    """
    del name, leaf_shape, mesh
    return None

  def metrics(self, state: Any) -> dict[str, jax.Array]:
    """Returns metrics [] of a state of `grad_transformation`, by name."""
    del state
    return {}


def without_dim(shape: Sequence[int], dim: int) -> tuple[int, ...]:
  """Returns a shape without one of its dimensions."""
  return tuple(shape[:dim]) + tuple(shape[dim + 1 :])


def counted(
  transformation: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Adds a step count to a transformation that applies the learning rate.

  The last item of the state has the `count` of `grad_transformation`.
  """
  return optax.chain(transformation, optax.scale_by_schedule(lambda _: 1.0))


def increment_count(state: tuple) -> tuple:
  """Returns a state with the `count` of its last item increased by one."""
  *others, last = state
  return (*others, last._replace(count=optax.safe_increment(last.count)))


def infinite_as_nan(x: jax.Array) -> jax.Array:
  """Returns an array with NaN instead of infinities.

  Division by an infinity hides it: 1 / inf is 0. A NaN propagates.
  """
  return jnp.where(jnp.isinf(x), jnp.nan, x).astype(x.dtype)


def inf_to_nan() -> optax.GradientTransformation:
  """Returns the transformation that replaces infinite gradients by NaN."""
  return optax.stateless(
    lambda updates, params=None: jax.tree.map(infinite_as_nan, updates)
  )
