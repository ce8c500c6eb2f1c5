"""Grafting: one optimizer's direction with another one's step size."""

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
  """State of both optimizers.

  Attributes:
    magnitude: state of the optimizer that gives the step size.
    direction: state of the optimizer that gives the direction.
  """

  magnitude: Any
  direction: Any


class Graft(BaseOptimizer):
  """Grafting, https://arxiv.org/abs/2002.11803, weight by weight.

  Both optimizers make a step from the same weight and gradients. The update has
  the norm of one step and the direction of the other; it is zero if the other
  step is zero.

  All fields of `BaseOptimizer` are set here. The learning rate is that of the
  optimizer that gives the step size.

  Attributes:
    magnitude_tpl: the optimizer that gives the step size.
    direction_tpl: the optimizer that gives the direction. It may set its own
      `learning_rate`, and then keeps its own schedule.

  Raises:
    UserError: an optimizer accumulates gradients of several batches, or has a
      field set that must be set here.
  """

  magnitude_tpl: Config = REQUIRED
  direction_tpl: Config = REQUIRED

  def __post_init__(self):
    super().__post_init__()
    for template in (self.magnitude_tpl, self.direction_tpl):
      self.check(
        not issubclass(template.cls, Accumulator),
        f'{class_name(template)} accumulates gradients of several batches; it'
        ' may wrap this optimizer, but not be wrapped by it',
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

  def own_spec(self, name, leaf_shape, mesh):
    specs = (
      one.own_spec(name, leaf_shape, mesh)
      for one in (self._magnitude, self._direction)
    )
    return next((spec for spec in specs if spec is not None), None)

  def grad_transformation(self):
    magnitude = self._magnitude.grad_transformation()
    direction = self._direction.grad_transformation()

    def init(weights):
      return GraftState(magnitude.init(weights), direction.init(weights))

    def update(gradients, state, params=None):
      sizes, of_magnitude = magnitude.update(gradients, state.magnitude, params)
      directions, of_direction = direction.update(
        gradients, state.direction, params
      )
      updates = jax.tree.map(_grafted, sizes, directions)
      return updates, GraftState(of_magnitude, of_direction)

    return counted(optax.GradientTransformation(init, update))


def _grafted(magnitude: jax.Array, direction: jax.Array) -> jax.Array:
  """Returns a step with the norm of one and the direction of another."""
  norm, size = (
    jnp.linalg.norm(x.astype(jnp.float32)) for x in (direction, magnitude)
  )
  scale = size / jnp.maximum(norm, _TINY)
  return jnp.where(norm > 0, scale * direction, 0).astype(direction.dtype)
