"""The base of all schedules."""

import jax
import jax.numpy as jnp

from pax_compat import config as config_lib


class BaseSchedule(config_lib.Configurable):
  """A function of the step."""

  def value_at(self, count: jax.Array) -> jax.Array:
    """Returns the factor [], in float32, at step `count` [] (from 0 on)."""
    raise NotImplementedError(type(self).__name__)

  def check_positive(self, **fields: float):
    """Raises a UserError where one of the fields is not positive."""
    for name, value in fields.items():
      self.check(value > 0, f'{name} is {value}; it must be positive')


def as_float(count: jax.Array) -> jax.Array:
  """Returns a step [] in float32."""
  return jnp.asarray(count, jnp.float32)
