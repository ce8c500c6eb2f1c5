"""The exponential moving average of the weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Arrays = dict[str, jax.Array]


class AverageState(NamedTuple):
  """A moving average.

  Attributes:
    count: [], int32, how many weights were averaged after the first.
    ema: nested dicts of the averages, float32 at least.
  """

  count: jax.Array
  ema: dict


def first_average(weights: dict) -> AverageState:
  """Returns the average at the first weights, which is these weights."""
  return AverageState(
    count=jnp.zeros([], jnp.int32),
    ema=jax.tree.map(lambda w: w.astype(_dtype(w)), weights),
  )


def next_average(
  state: AverageState, weights: dict, decay: float
) -> AverageState:
  """Returns the average after one more step.

  In step n, from 0, average e and weights w give e - (1 - d) * (e - w), with
  d = min(decay, (1 + n) / (10 + n)), so that early weights are soon forgotten.

  Args:
    state: the average so far.
    weights: those that the step starts from, as Pax has it, so that the average
      lags behind the newest weights by one step; or those that it makes.
    decay: of the average.
  """
  n = state.count.astype(jnp.float32)
  decay = jnp.minimum(decay, (1 + n) / (10 + n))
  return AverageState(
    count=state.count + 1,
    ema=jax.tree.map(
      lambda e, w: (e - (1 - decay) * (e - w)).astype(e.dtype),
      state.ema,
      weights,
    ),
  )


def placed_average(
  weights: dict, elsewhere: jax.sharding.Sharding | None
) -> AverageState:
  """Returns the shapes, dtypes and shardings of an average of weights."""
  return AverageState(
    count=jax.ShapeDtypeStruct([], jnp.int32, sharding=elsewhere),
    ema=jax.tree.map(
      lambda w: jax.ShapeDtypeStruct(w.shape, _dtype(w), sharding=w.sharding),
      weights,
    ),
  )


def _dtype(weight):
  # In bfloat16, a small step of an average is lost.
  return jnp.promote_types(weight.dtype, jnp.float32)
