"""The exponential moving average of the weights."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Arrays = dict[str, jax.Array]


class AverageState(NamedTuple):
  """A moving average.

  Attributes:
    count: [], int32, number of averaged steps.
    ema: nested dicts of the averages, in float32 or wider.
    variables: averages of non-trainable variables, nested dicts by collection;
      None for none.
  """

  count: jax.Array
  ema: dict
  variables: dict | None = None


def init_average(weights: dict, variables: dict | None = None) -> AverageState:
  """Returns the initial average: the initial weights and variables."""

  def initial(x):
    return x.astype(_dtype(x))

  return AverageState(
    count=jnp.zeros([], jnp.int32),
    ema=jax.tree.map(initial, weights),
    variables=jax.tree.map(initial, variables),
  )


def next_average(
  state: AverageState,
  weights: dict,
  decay: float,
  step_of: Callable[[jax.Array], jax.Array] = lambda count: count,
) -> AverageState:
  """Returns the average after one more step.

  In step n, from 0, average e and weights w give e - (1 - d) * (e - w), with
  d = min(decay, (1 + n) / (10 + n)), so that early weights fade soon.

  Args:
    state: the average so far.
    weights: the weights before the step, as in Pax, so that the average lags
      one step behind; or the weights after it.
    decay: the largest decay.
    step_of: returns n by the number of averaged steps; by default the number.
  """
  return state._replace(
    count=state.count + 1,
    ema=_closer(state, state.ema, weights, decay, step_of),
  )


def with_variables(
  old: AverageState,
  new: AverageState,
  variables: dict,
  decay: float,
  step_of: Callable[[jax.Array], jax.Array] = lambda count: count,
) -> AverageState:
  """Returns a step's next average with those of non-trainable variables.

  Args:
    old: the average before the step.
    new: the average after it, of weights only.
    variables: the variables after it, as in `AverageState`.
    decay: see `next_average`.
    step_of: see `next_average`.
  """
  closer = _closer(old, old.variables, variables, decay, step_of)
  is_averaged = new.count > old.count
  return new._replace(
    variables=jax.tree.map(
      lambda c, e: jnp.where(is_averaged, c, e), closer, old.variables
    )
  )


def _closer(state, averages, values, decay, step_of):
  """Returns the averages after one more step, by the state before it."""
  n = jnp.asarray(step_of(state.count), jnp.float32)
  decay = jnp.minimum(decay, (1 + n) / (10 + n))
  return jax.tree.map(
    lambda e, x: (e - (1 - decay) * (e - x)).astype(e.dtype), averages, values
  )


def abstract_average(
  weights: dict,
  replicated: jax.sharding.Sharding | None,
  variables: dict | None = None,
) -> AverageState:
  """Returns the shapes, dtypes and shardings of an average."""

  def abstract(x):
    return jax.ShapeDtypeStruct(x.shape, _dtype(x), sharding=x.sharding)

  return AverageState(
    count=jax.ShapeDtypeStruct([], jnp.int32, sharding=replicated),
    ema=jax.tree.map(abstract, weights),
    variables=jax.tree.map(abstract, variables),
  )


def _dtype(weight):
  # bfloat16 would round away the small steps of an average.
  return jnp.promote_types(weight.dtype, jnp.float32)
