"""The base of all schedules."""

import jax
import jax.numpy as jnp

from pax_compat import config as config_lib
from pax_compat import errors


class BaseSchedule(config_lib.Configurable):
  """A function of the step."""

  def value_at(self, count: jax.Array) -> jax.Array:
    """Returns the factor [], in float32, at step `count` [] (from 0 on)."""
    raise NotImplementedError(type(self).__name__)

  def check(self, holds: bool, wrong: str):
    """Raises a UserError that says what is `wrong`, unless the check `holds`.

    Args:
      holds: the outcome.
      wrong: the field, its value, and what was expected.
    """
    if not holds:
      raise errors.UserError(f'{type(self).__name__}: {wrong}')

  def check_positive(self, **fields: float):
    """Raises a UserError where one of the fields is not positive."""
    for name, value in fields.items():
      self.check(value > 0, f'{name} is {value}; it must be positive')


def as_float(count: jax.Array) -> jax.Array:
  """Returns a step [] in float32."""
  return jnp.asarray(count, jnp.float32)
