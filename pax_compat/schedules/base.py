"""The base of all schedules."""

import jax
import jax.numpy as jnp

from pax_compat import config as config_lib


class BaseSchedule(config_lib.Configurable):
  """A function from the step to a factor of the learning rate.

  >>> from pax_compat import schedules
  >>> schedule = schedules.Linear.config(start=(0, 1.0), limit=(4, 0.0))
  >>> [float(schedule.Instantiate().value_at(step)) for step in (0, 1, 4, 9)]
  [1.0, 0.75, 0.0, 0.0]
  """

  def value_at(self, count: jax.Array) -> jax.Array:
    """Returns the factor [], float32, at step `count` [], from 0."""
    raise NotImplementedError(type(self).__name__)

  def check_positive(self, **fields: float):
    """Raises a UserError where one of the fields is not positive."""
    for name, value in fields.items():
      self.check(value > 0, f'{name} is {value}; it must be positive')


def as_float(count: jax.Array) -> jax.Array:
  """Returns a step [] in float32."""
  return jnp.asarray(count, jnp.float32)
