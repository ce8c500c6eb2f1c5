"""What all optimizers have: regularisation, clipping, rate, and the contract.

An optimizer makes an optax transformation and says what a learner must know of
it. The learner applies the fields that concern all weights together or what a
weight is: regularisation, decoupled decay, clipping, the moving average.

State. Every transformation here keeps what it remembers of weights in trees
that have the keys of the weights, by which `learners.state_leaves` tells the
leaves that belong to a weight from those that belong to none (counts). A leaf
of a weight has one of three shapes:

* the weight's own: it is sharded like the weight;
* the weight's without one dimension, which `BaseOptimizer.reduced_dim` names:
  it is sharded like the weight, without this dimension's entry;
* any other, such as the [1] that stands where a weight has no such leaf: it is
  replicated.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from pax_compat import config as config_lib
from pax_compat import errors, schedules
from pax_compat.config import Config, sub_config_field


class BaseOptimizer(config_lib.Configurable):
  """What all optimizers have.

  A subclass implements `direction`, or, where the learning rate acts inside,
  `grad_transformation`.

  Attributes:
    l2_regularizer_weight: if set, this times a weight is added to its gradient.
    l1_regularizer_weight: if set, this times the sign of a weight is added to
      its gradient. Not together with L2.
    skip_lp_1d_vectors: whether weights of rank 0 and 1 are spared from L1 and
      L2.
    decoupled_weight_decay: if set, this times the learning rate times a weight
      is subtracted from it in each step that updates weights. Not together with
      L1 or L2. Weights that are marked to skip regularisation are spared.
    clip_gradient_norm_to_value: if positive, all gradients are scaled down
      together so that their global norm is at most this.
    clip_gradient_single_norm_to_value: if positive, each gradient is scaled
      down so that its own norm is at most this. Not together with the above.
    learning_rate: the base, multiplied by the schedule. It must be set.
    lr_schedule: the factor at each step.
    ema_decay: if positive, the decay of a moving average of the weights; below
      1.
    ewc_regularizer_weight: elastic weight consolidation, which is not
      supported: 0.
    ewc_weight_per_var: as `ewc_regularizer_weight`: None.

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
    self._exclude('l1_regularizer_weight', 'l2_regularizer_weight')
    self._exclude('decoupled_weight_decay', 'l1_regularizer_weight')
    self._exclude('decoupled_weight_decay', 'l2_regularizer_weight')
    self._exclude(
      'clip_gradient_norm_to_value', 'clip_gradient_single_norm_to_value'
    )
    self.check(self.ema_decay < 1, f'ema_decay is {self.ema_decay}; below 1')
    ewc = 'elastic weight consolidation is not supported'
    self.refuse(ewc_regularizer_weight=ewc, ewc_weight_per_var=ewc)

  def refuse(self, **reasons: str):
    """Raises a UserError where a field is set that is not supported.

    Args:
      **reasons: by the field's name, why, or what does the same.
    """
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name in reasons and value != field.default:
        raise errors.UserError(
          f'{type(self).__name__}.{field.name} is {value!r}, expected'
          f' {field.default!r}: {reasons[field.name]}'
        )

  def _exclude(self, one: str, other: str):
    both = getattr(self, one) and getattr(self, other)
    self.check(not both, f'{one} and {other} exclude each other; set one')

  def learning_rate_fn(self) -> Callable[[jax.Array], jax.Array]:
    """Returns the function from the step to the learning rate.

    Raises:
      UserError: `learning_rate` is not set, or the schedule is not right.
    """
    self.check(
      self.learning_rate is not None,
      'learning_rate is not set; expected a number',
    )
    schedule = self.lr_schedule.Instantiate()
    return lambda count: self.learning_rate * schedule.value_at(count)

  def grad_transformation(self) -> optax.GradientTransformation:
    """Returns the transformation from gradients to updates of the weights.

    The learning rate is applied in it. Its state is a tuple, whose last part
    has `count`, the number of steps so far: what `learning_rate_fn` takes.
    """
    return optax.chain(
      self.direction(),
      optax.scale_by_learning_rate(self.learning_rate_fn()),
    )

  def direction(self) -> optax.GradientTransformation:
    """Returns the transformation before the learning rate is applied."""
    raise NotImplementedError(type(self).__name__)

  def updates_weights(self, count: jax.Array) -> jax.Array:
    """Whether the step after `count` [] others updates weights, as a bool [].

    A step that only collects gradients does not. What a learner itself changes
    weights by (decoupled decay) belongs to the steps that do.
    """
    return jnp.ones_like(count, bool)

  def check_supports_no_op_steps(self):
    """Raises a UserError if it cannot rest while others are trained.

    It can where the learning rate is applied last.
    """
    self.check(
      type(self).grad_transformation is BaseOptimizer.grad_transformation,
      'it cannot rest while another task is trained; expected an optimizer that'
      ' applies its learning rate last, such as Adam or Sgd',
    )

  def no_op_step(self, state: Any) -> Any:
    """Returns the state after a step in which its weights were not trained.

    Only what the learning rate goes by changes.

    Args:
      state: of `grad_transformation`.
    """
    return count_on(state)

  def reduced_dim(
    self, name: str, weight_shape: Sequence[int], leaf_shape: Sequence[int]
  ) -> int | None:
    """Returns which dimension of a weight one of its state leaves lacks.

    Args:
      name: of the field of the state that the leaf stands under: the last
        attribute in its path in the tree of states.
      weight_shape: of the weight.
      leaf_shape: of the leaf, one dimension less.

    Returns:
      The dimension, or None where it cannot be told (the leaf is replicated).
    """
    del name
    dims = [
      dim
      for dim in range(len(weight_shape))
      if without_dim(weight_shape, dim) == tuple(leaf_shape)
    ]
    return dims[0] if len(dims) == 1 else None


def without_dim(shape: Sequence[int], dim: int) -> tuple[int, ...]:
  """Returns a shape without one of its dimensions."""
  return tuple(shape[:dim]) + tuple(shape[dim + 1 :])


def counted(
  transformation: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Returns a transformation that already applies the learning rate, counted.

  The last part of its state has the `count` that `grad_transformation` names.
  """
  return optax.chain(transformation, optax.scale_by_schedule(lambda _: 1.0))


def count_on(state: tuple) -> tuple:
  """Returns a state whose last part, which counts steps, counts one more."""
  *others, last = state
  return (*others, last._replace(count=optax.safe_increment(last.count)))


def infinite_as_nan(x: jax.Array) -> jax.Array:
  """Returns an array whose infinities are NaN.

  An infinity hides where it is divided by: 1 / inf is 0. A NaN does not.
  """
  return jnp.where(jnp.isinf(x), jnp.nan, x).astype(x.dtype)


def inf_to_nan() -> optax.GradientTransformation:
  """Returns the transformation that makes infinities in gradients NaN."""
  return optax.stateless(
    lambda updates, params=None: jax.tree.map(infinite_as_nan, updates)
  )
