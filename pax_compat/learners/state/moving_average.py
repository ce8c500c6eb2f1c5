"""The exponential moving average of the weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Arrays = dict[str, jax.Array]


class AverageState(NamedTuple):
  """A moving average.

  Attributes:
    count: [], int32, number of averaged steps.
    ema: nested dicts of the averages, in float32 or wider.
  """

  count: jax.Array
  ema: dict


def init_average(weights: dict) -> AverageState:
  """Returns the initial average: the initial weights."""
  return AverageState(
    count=jnp.zeros([], jnp.int32),
    ema=jax.tree.map(lambda w: w.astype(_dtype(w)), weights),
  )


def next_average(
  state: AverageState, weights: dict, decay: float
) -> AverageState:
  """Returns the average after one more step.

  In step n, from 0, average e and weights w give e - (1 - d) * (e - w), with
  d = min(decay, (1 + n) / (10 + n)), so that early weights fade soon.

  Args:
    state: the average so far.
    weights: the weights before the step, as in Pax, so that the average lags
      one step behind; or the weights after it.
    decay: the largest decay.
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


def abstract_average(
  weights: dict, replicated: jax.sharding.Sharding | None
) -> AverageState:
  """Returns the shapes, dtypes and shardings of an average of weights."""
  return AverageState(
    count=jax.ShapeDtypeStruct([], jnp.int32, sharding=replicated),
    ema=jax.tree.map(
      lambda w: jax.ShapeDtypeStruct(w.shape, _dtype(w), sharding=w.sharding),
      weights,
    ),
  )


def _dtype(weight):
  # bfloat16 would round away the small steps of an average.
  return jnp.promote_types(weight.dtype, jnp.float32)
