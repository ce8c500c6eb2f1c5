"""One optimizer's direction, by the length of another one's step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pax_compat.config import REQUIRED, Config, class_name
from pax_compat.optimizers.accumulation import (
  Accumulator,
  check_common_fields,
)
from pax_compat.optimizers.base import BaseOptimizer, counted

_TINY = 1e-30
_RATE = ('learning_rate', 'lr_schedule')


class GraftState(NamedTuple):
  """What both optimizers remember.

  Attributes:
    magnitude: the state of the one that says how far.
    direction: the state of the one that says whereto.
  """

  magnitude: Any
  direction: Any


class Graft(BaseOptimizer):
  """Grafting, https://arxiv.org/abs/2002.11803, weight by weight.

  Both optimizers make a step from the same weight, with the same gradients. The
  weight goes as far as the one does, in the direction of the other. A step of
  the other that is zero leaves it where it is.

  All fields that `BaseOptimizer` has are set here. The learning rate is that of
  the one that says how far.

  Attributes:
    magnitude_tpl: the optimizer that says how far.
    direction_tpl: the one that says whereto. Where it has a learning rate of
      its own it has that, and its own schedule.

  Raises:
    UserError: an optimizer collects gradients of several batches, or has a
      field set that belongs here.
  """

  magnitude_tpl: Config = REQUIRED
  direction_tpl: Config = REQUIRED

  def __post_init__(self):
    super().__post_init__()
    for template in (self.magnitude_tpl, self.direction_tpl):
      self.check(
        not issubclass(template.cls, Accumulator),
        f'{class_name(template)} collects gradients of several batches; it may'
        ' be around this, but not within',
      )
    rate = {name: getattr(self, name) for name in _RATE}
    check_common_fields(self, self.magnitude_tpl)
    own = self.direction_tpl.learning_rate is not None
    check_common_fields(self, self.direction_tpl, *(_RATE if own else ()))
    self._magnitude = self.magnitude_tpl.clone().set(**rate).Instantiate()
    template = self.direction_tpl.clone()
    self._direction = template.set(**({} if own else rate)).Instantiate()

  def reduced_dim(self, name, weight_shape, leaf_shape):
    dims = {
      one.reduced_dim(name, weight_shape, leaf_shape)
      for one in (self._magnitude, self._direction)
    }
    return dims.pop() if len(dims) == 1 else None

  def grad_transformation(self):
    length = self._magnitude.grad_transformation()
    way = self._direction.grad_transformation()

    def init(weights):
      return GraftState(length.init(weights), way.init(weights))

    def update(gradients, state, params=None):
      lengths, magnitude = length.update(gradients, state.magnitude, params)
      ways, direction = way.update(gradients, state.direction, params)
      updates = jax.tree.map(_grafted, lengths, ways)
      return updates, GraftState(magnitude, direction)

    return counted(optax.GradientTransformation(init, update))


def _grafted(magnitude: jax.Array, direction: jax.Array) -> jax.Array:
  """Returns a step with the norm of one and the direction of another."""
  norm = _norm(direction)
  scale = _norm(magnitude) / jnp.maximum(norm, _TINY)
  return jnp.where(norm > 0, scale * direction, 0).astype(direction.dtype)


def _norm(x: jax.Array) -> jax.Array:
  return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32))))
