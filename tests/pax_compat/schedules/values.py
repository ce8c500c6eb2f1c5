"""Evaluates schedules, as a train step does."""

import jax
import jax.numpy as jnp
import numpy as np


def values(config, steps) -> np.ndarray:
  """Returns the values of a schedule at whole steps, in float32."""
  value_at = jax.jit(config.Instantiate().value_at)
  got = [value_at(jnp.int32(step)) for step in steps]
  assert {(v.shape, v.dtype) for v in got} == {((), jnp.dtype('float32'))}
  return np.array(got)


def assert_values(config, steps, formula):
  """Fails unless a schedule has a formula's value at each of the steps."""
  expected = np.array([formula(step) for step in steps], np.float64)
  np.testing.assert_allclose(
    values(config, steps), expected, rtol=1e-5, atol=1e-7
  )
