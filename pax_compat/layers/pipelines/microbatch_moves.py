"""How microbatches get to the first stage of a pipeline, and from the last one.

In iteration t of the loop, the first stage takes a microbatch from a buffer,
every other stage takes the outputs of the stage before it, and the outputs of
the last stage go back into the buffer.

Shapes: M microbatches, S stages.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat.layers.pipelines import microbatches
from pax_compat.layers.pipelines.pipeline_schedule import Schedule


class Replicated:
  """All microbatches are on the devices of every stage: a buffer [M, ...]."""

  def __init__(
    self, schedule: Schedule, by_stage: Callable[[jax.Array], jax.Array]
  ):
    """Creates the moves of a schedule.

    Args:
      schedule: the schedule.
      by_stage: shards an array [S, ...] over the stages.
    """
    self._schedule = schedule
    self._by_stage = by_stage

  def loaded(self, inputs: Any) -> Any:
    """Returns the buffer with the inputs, arrays [M, ...]."""
    return inputs

  def inputs(self, buffer: Any, outputs: Any, t: jax.Array) -> Any:
    """Returns the inputs of all stages [S, ...] in iteration t.

    Args:
      buffer: the buffer.
      outputs: [S, ...], of all stages in the iteration before.
      t: the iteration.
    """
    first = microbatches.get(buffer, t % self._schedule.microbatches)
    return jax.tree.map(self._shifted, outputs, first)

  def _shifted(self, outputs: jax.Array, first: jax.Array) -> jax.Array:
    """Returns the first stage's input, then the shifted outputs.

    Written as a rotation, which compiles to a collective permute.
    """
    rotated = jnp.concatenate([outputs[-1:], outputs[:-1]])
    return self._by_stage(jnp.where(self._is_stage(0, outputs), first, rotated))

  def _is_stage(self, stage: int, like: jax.Array) -> jax.Array:
    """Returns a mask of one stage, [S, 1, ...] of the rank of an array."""
    is_it = jnp.arange(self._schedule.stages) == stage
    return is_it.reshape([-1] + [1] * (like.ndim - 1))

  def store(self, buffer: Any, outputs: Any, t: jax.Array) -> Any:
    """Returns the buffer with the last stage's outputs of iteration t."""
    microbatch, _, is_valid = self._schedule.at(t, self._schedule.stages - 1)

    def put(x, y):
      old = jax.lax.dynamic_index_in_dim(x, microbatch, keepdims=False)
      new = jnp.where(is_valid, y[-1], old)
      return jax.lax.dynamic_update_index_in_dim(x, new, microbatch, 0)

    return jax.tree.map(put, buffer, outputs)

  def unloaded(self, buffer: Any) -> Any:
    """Returns the outputs [M, ...] from the buffer after the last iteration."""
    return buffer


class Streamed(Replicated):
  """Each stage's devices have M / S microbatches: a buffer [S, M / S, ...].

  At the start, microbatch m is in row m mod S, slot m // S. S iterations after
  each other use one slot, then the next slot is used. An iteration takes the
  first stage's input from the slot's row 0, moves the slot up by a row, and
  writes the last stage's output into its last row. So each microbatch moves to
  a neighbouring stage only, and outputs take the place of inputs that were
  taken. Only without repeats, for M a multiple of S.
  """

  def loaded(self, inputs: Any) -> Any:
    return jax.tree.map(
      lambda x: self._by_stage(
        jnp.swapaxes(x.reshape(-1, self._schedule.stages, *x.shape[1:]), 0, 1)
      ),
      inputs,
    )

  def inputs(self, buffer: Any, outputs: Any, t: jax.Array) -> Any:
    slot = self._slot(t)
    return jax.tree.map(
      lambda y, x: self._shifted(y, self._row(x, slot)), outputs, buffer
    )

  def _slot(self, t: jax.Array) -> jax.Array:
    stages = self._schedule.stages
    return t // stages % (self._schedule.microbatches // stages)

  def _row(self, x: jax.Array, slot: jax.Array) -> jax.Array:
    """Returns a slot of all stages, [S, ...]."""
    return jax.lax.dynamic_index_in_dim(x, slot, axis=1, keepdims=False)

  def store(self, buffer: Any, outputs: Any, t: jax.Array) -> Any:
    slot, last = self._slot(t), self._schedule.stages - 1

    def put(x, y):
      old = self._row(x, slot)
      moved = jnp.concatenate([old[1:], old[:1]])
      new = self._by_stage(jnp.where(self._is_stage(last, y), y, moved))
      return jax.lax.dynamic_update_index_in_dim(x, new, slot, 1)

    return jax.tree.map(put, buffer, outputs)

  def unloaded(self, buffer: Any) -> Any:
    # Microbatch m was stored in iteration m + S - 1. The last S - 1 iterations
    # use slot 0 a second time, and do not move it round completely.
    stages, number = self._schedule.stages, self._schedule.microbatches
    m = np.arange(number)
    rest = number - stages
    index = np.where(m > rest, m - rest, np.where(m > 0, m + stages - 1, 0))
    return jax.tree.map(
      lambda x: jnp.swapaxes(x, 0, 1).reshape(number, *x.shape[2:])[index],
      buffer,
    )
