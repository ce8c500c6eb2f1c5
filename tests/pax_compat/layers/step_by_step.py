"""Decoding in pieces, to hold it against the whole."""

import jax
import numpy as np

from pax_compat.base_layer import DECODE_CACHE, PARAMS
from pax_compat.nested_map import NestedMap


def decode(layer, weights, x, sizes, *init_args, init=None, step=None, by=None):
  """Returns what a layer's `extend_step` returns, all pieces in one.

  Of predictions it returns the logits.

  Args:
    layer: the layer.
    weights: its weights, or variables with other collections, too.
    x: [B, T, ...], what is decoded.
    sizes: how many positions each piece has.
    *init_args: arguments of `init_states`.
    init: keyword arguments of it.
    step: keyword arguments of `extend_step`.
    by: likewise, arrays [B, T] of which each step gets its part.
  """

  @jax.jit
  def start(variables):
    return layer.apply(
      variables,
      *init_args,
      method='init_states',
      mutable=[DECODE_CACHE],
      **(init or {}),
    )[1]

  @jax.jit
  def extend(variables, x, time_step, by):
    return layer.apply(
      variables,
      x,
      time_step=time_step,
      method='extend_step',
      mutable=[DECODE_CACHE],
      **(step or {}),
      **by,
    )

  variables = weights if PARAMS in weights else {PARAMS: weights}
  state, outputs, first = start(variables), [], 0
  for size in sizes:
    now = slice(first, first + size)
    part = {name: value[:, now] for name, value in (by or {}).items()}
    y, state = extend({**variables, **state}, x[:, now], first, part)
    outputs.append(y.logits if isinstance(y, NestedMap) else y)
    first += size
  return np.concatenate(outputs, axis=1)
