"""Networks by Pax's conventions, which do not allocate decode states.

Such a network has no `init_states`. A call fills its decode states, and
`extend_step(ids, segment_pos)` reads the token of the next position, which the
network counts itself. The last token of a prefix is read twice: by the call,
and by the first step.

Shapes: B rows, P prefix, L new tokens, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.decoding import state_alignment
from pax_compat.decoding.cached_network import (
  CachedNetwork,
  Reordered,
  States,
  of_hypotheses,
)
from pax_compat.layer_core.decode_states import (
  StateFn,
  is_shared,
  repeat_rows,
)


class PaxNetwork(CachedNetwork):
  """A network whose decode states begin with a call.

  It is called as `network(ids, paddings, segment_ids=..., segment_pos=...,
  start_time_step=..., causal_attention_mask=...)`; `extend_step` returns
  `logits` [B, V]. Rows are repeated before the first step: each sample has its
  row in every step. States are repeated, enlarged and reordered by the
  network's `transform_decode_state`, if it has one.
  """

  def __init__(
    self,
    network: base_layer.BaseLayer,
    rows: int,
    extra_inputs: Mapping[str, Any] | None = None,
    *,
    prefix: int | None = None,
  ):
    """Takes a network.

    Args:
      network: a bound layer.
      rows: B.
      extra_inputs: further keyword arguments of its call, trees of arrays
        [B, ...] or, of positions, [B, P, ...].
      prefix: P.
    """
    extra = dict(extra_inputs or {})

    def allocate(module, length, repeats):

      def resized(x):
        if x.ndim > 1 and x.shape[1] == prefix:
          x = jnp.zeros((x.shape[0], length, *x.shape[2:]), x.dtype)
        return jnp.repeat(x, repeats, axis=0)

      extra_of_length = jax.tree.map(resized, extra)
      _allocate(module, rows * repeats, length, extra_of_length)

    super().__init__(network, allocate, _extend)
    self._extra_inputs = extra

  def begin(
    self,
    ids: jax.Array,
    length: int,
    repeats: int,
    *,
    causal: bool,
    **positions,
  ) -> tuple[jax.Array, States]:
    prefix = ids.shape[1]
    if prefix == 1:
      states = self.init_states(length, repeats)
    else:
      _, states = self._apply(
        lambda module: _read_prefix(
          module, ids, causal, self._extra_inputs, **positions
        ),
        {},
      )
      states = self.repeat(self.grow(states, length - prefix), repeats)
    last = {
      name: jnp.repeat(value[:, -1:], repeats, axis=0)
      for name, value in (('ids', ids), *positions.items())
      if name != 'mask'
    }
    return self.step(
      states, time_step=jnp.asarray(prefix - 1), causal=True, **last
    )

  def repeat(self, states: States, repeats: int) -> States:
    if repeats == 1 or not self._transforms:
      return super().repeat(states, repeats)
    return self._transformed(states, repeat_rows(repeats))

  def grow(self, states: States, positions: int) -> States:
    if not self._transforms:
      return super().grow(states, positions)
    return self._transformed(states, state_alignment.pad_state_fn(positions))

  def reordered(
    self, states: States, hyps: jax.Array, first: int = 0
  ) -> Reordered:
    if not self._transforms:
      return super().reordered(states, hyps, first)
    states = self._transformed(
      states,
      lambda x, batch, _: x if batch < 0 else of_hypotheses(x, hyps, batch),
    )
    return states, [None] * len(jax.tree.leaves(states, is_leaf=is_shared))

  @property
  def _transforms(self) -> bool:
    return hasattr(self.module, 'transform_decode_state')

  def _transformed(self, states: States, change: StateFn) -> States:
    """Returns states that the network has changed itself, as in Pax."""
    _, states = self._apply(
      lambda module: module.transform_decode_state(change), states
    )
    return states


def _allocate(
  network: Any, rows: int, length: int, extra_inputs: dict[str, Any]
):
  """Calls the network, on padding, for decode states of `length` positions."""
  shape = (rows, length)
  network(
    jnp.zeros(shape, jnp.int32),
    jnp.ones(shape),
    segment_ids=None,
    segment_pos=None,
    start_time_step=0,
    causal_attention_mask=None,
    **extra_inputs,
  )


def _read_prefix(
  network: Any,
  ids: jax.Array,
  causal: bool,
  extra_inputs: dict[str, Any],
  segment_pos: jax.Array,
  mask: jax.Array,
):
  """Calls the network on right-aligned prefixes [B, P].

  Args:
    network: the network.
    ids: [B, P].
    causal: whether attention within the prefix is causal.
    extra_inputs: further keyword arguments of the call.
    segment_pos: [B, P].
    mask: [B, 1, 1, P or more], 0 at the padding before a prefix.
  """
  prefix = ids.shape[1]
  is_token = mask[:, 0, 0, :prefix]
  network(
    ids,
    1.0 - is_token,
    segment_ids=is_token.astype(jnp.int32),
    segment_pos=segment_pos,
    start_time_step=prefix - 1,
    causal_attention_mask=None if causal else 1.0 - is_token,
    **extra_inputs,
  )


def _extend(
  network: Any,
  ids: jax.Array,
  *,
  causal: bool,
  time_step: jax.Array,
  segment_pos: jax.Array | None = None,
  mask: jax.Array | None = None,
) -> jax.Array:
  """Returns logits [B, 1, V] of a step; see `cached_network.ExtendStepFn`."""
  del causal, mask  # Of a prefix: its call was given them.
  if segment_pos is None:
    segment_pos = jnp.broadcast_to(time_step, ids.shape)
  output = network.extend_step(ids[:, 0], segment_pos=segment_pos[:, 0])
  return output.logits[:, None]
