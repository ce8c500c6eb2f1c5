"""Decoding with attention: caches of keys and values, decoding steps.

Shapes: B batch, L decoding steps at once, S capacity of the cache in positions,
D model dims, N heads, K heads of keys and values, H dims of a head.
"""

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.layers.attentions import attention_masks
from pax_compat.layers.attentions.attention_ops import AttentionInputs


class DecodableAttention(base_layer.BaseLayer):
  """Base class of the attention layers: their decoding cache and steps.

  Subclasses define the projections and the attention itself. The cache contains
  keys as they are multiplied with queries, already rotated and normalised.
  """

  def init_states(self, batch_size: int, max_length: int):
    """Allocates the cache of keys and values.

    Args:
      batch_size: B.
      max_length: S, the number of positions to decode, including a prefix.
    """
    heads = (self._kv_heads(), self._head_dims())
    shape = (batch_size, max_length, *heads)
    dtype = self.compute_dtype
    in_float32 = self._rotates() and not self.cast_rotary_position_emb
    self.update_decode_state(
      'key_state', jnp.zeros(shape, jnp.float32 if in_float32 else dtype)
    )
    self.update_decode_state('value_state', jnp.zeros(shape, dtype))
    if self._bias_by_positions():
      self.update_decode_state(
        'key_positions', jnp.zeros((batch_size, max_length), jnp.int32)
      )
    if self.dconv_qkv:
      for name in ('dconv_q', 'dconv_k', 'dconv_v'):
        dims = getattr(self, name).hidden_dims
        window = (batch_size, self.dconv_kernel_size - 1, *dims)
        self.update_decode_state(f'{name}_window', jnp.zeros(window, dtype))

  def extend_step(
    self,
    query_vec: jax.Array,
    *,
    time_step: jax.Array | int,
    mask: jax.Array | None = None,
    causal: bool = True,
    query_positions: jax.Array | None = None,
  ) -> jax.Array:
    """Attends from new positions to themselves and all positions before them.

    Args:
      query_vec: [B, L, D], the new positions. L is 1 in a decoding step and the
        length of the prefix in the first call.
      time_step: [], index of the first new position. With `dconv_qkv`, steps
        must follow each other without gaps.
      mask: boolean, broadcasts to [B, N, L, S], for instance False at the
        padding before a prefix; None hides only positions not decoded yet.
      causal: whether later new positions are hidden too; False for a prefix
        with bidirectional attention.
      query_positions: [B, L], as in `DotProductAttention`; None takes the
        indices, from `time_step` on.

    Returns:
      [B, L, D].

    Raises:
      UserError: `init_states` was not called, or the cache is too small.
    """
    self._check_mask(mask)
    steps = query_vec.shape[1]
    length = self._check_capacity(query_vec)
    positions = query_positions
    if positions is None:
      positions = time_step + jnp.arange(steps)[None]
    query, key, value = self._project(query_vec, query_vec, query_vec)
    if self.dconv_qkv:
      query = self._convolve_step('dconv_q', query, positions)
      key = self._convolve_step('dconv_k', key, positions)
      value = self._convolve_step('dconv_v', value, positions)
    key = self._finish_key(key, positions)
    known = attention_masks.step_mask(time_step, steps, length, causal=causal)
    inputs = AttentionInputs(
      self._finish_query(query, positions),
      self._extend('key_state', key, time_step),
      self._extend('value_state', value, time_step),
      mask=attention_masks.combine_masks(mask, known),
      bias=self._step_bias(positions, time_step, length),
    )
    return self._attend(inputs, one_step=True, time_step=time_step)

  def init_cross_states(
    self,
    key_vec: jax.Array,
    value_vec: jax.Array | None = None,
    *,
    key_positions: jax.Array | None = None,
  ):
    """Caches the projected source of cross attention, for all steps.

    Args:
      key_vec: [B, S, D].
      value_vec: [B, S, D]; None takes `key_vec`.
      key_positions: [B, S]; None takes 0..S-1.
    """
    self._check_cross()
    value_vec = key_vec if value_vec is None else value_vec
    key, value = self._project_source(key_vec, value_vec)
    self.update_decode_state(
      'cross_key_state', self._finish_key(key, key_positions)
    )
    self.update_decode_state('cross_value_state', value)
    if self.relative_bias_tpl is not None:
      if key_positions is None:
        key_positions = jnp.arange(key.shape[1])[None]
      self.update_decode_state('cross_key_positions', key_positions)

  def cross_step(
    self,
    query_vec: jax.Array,
    *,
    mask: jax.Array | None = None,
    query_positions: jax.Array | None = None,
  ) -> jax.Array:
    """Attends from new positions to the source of `init_cross_states`.

    Args:
      query_vec: [B, L, D].
      mask: boolean, broadcasts to [B, N, L, S]; None hides nothing.
      query_positions: [B, L]; required with rotary embeddings or a relative
        bias.

    Returns:
      [B, L, D].

    Raises:
      UserError: positions are missing, or `init_cross_states` was not called.
    """
    self._check_cross()
    self._check_mask(mask)
    biased = self.relative_bias_tpl is not None
    if query_positions is None and (biased or self._rotates()):
      raise errors.UserError(
        f'{type(self).__name__}.cross_step: expected query_positions, because'
        ' this attention uses positions'
      )
    bias = None
    if biased:
      bias = self.relative_bias.at(
        query_positions, self.get_decode_state('cross_key_positions')
      )
    inputs = AttentionInputs(
      self._finish_query(self._project_query(query_vec), query_positions),
      self.get_decode_state('cross_key_state'),
      self.get_decode_state('cross_value_state'),
      mask,
      bias,
    )
    return self._attend(inputs, one_step=True)

  def _check_cross(self):
    for field in ('combine_qkv', 'dconv_qkv'):
      if getattr(self, field):
        raise errors.UserError(
          f'{type(self).__name__}.{field} is for self attention; it does not'
          ' support cross attention'
        )

  def _check_capacity(self, query_vec: jax.Array) -> int:
    """Returns S, after a check that the new positions fit the cache."""
    batch, length = self.get_decode_state('key_state').shape[:2]
    if query_vec.shape[0] != batch or query_vec.shape[1] > length:
      raise errors.UserError(
        f'{type(self).__name__}.extend_step: {query_vec.shape[1]} positions of'
        f' {query_vec.shape[0]} examples; init_states() allocated {length}'
        f' positions of {batch} examples'
      )
    return length

  def _extend(
    self, name: str, value: jax.Array, time_step: jax.Array | int
  ) -> jax.Array:
    """Writes `value` [B, L, ...] at `time_step`; returns the whole cache."""
    state = self.get_decode_state(name)
    state = jax.lax.dynamic_update_slice_in_dim(
      state, value.astype(state.dtype), time_step, axis=1
    )
    if state.ndim == 4:
      state = self.shard(state, self._key_mapping())
    self.update_decode_state(name, state)
    return state

  def _convolve_step(
    self, name: str, inputs: jax.Array, positions: jax.Array
  ) -> jax.Array:
    """Convolves new heads [B, L, N, H] with those of earlier steps."""
    window = self.get_decode_state(f'{name}_window')
    before, steps = window.shape[1], inputs.shape[1]
    inputs = jnp.concatenate([window, inputs.astype(window.dtype)], axis=1)
    self.update_decode_state(f'{name}_window', inputs[:, steps:])
    positions = jnp.pad(positions, ((0, 0), (before, 0)))
    convolved = getattr(self, name)(inputs, axis=1, segment_pos=positions)
    return convolved[:, before:]

  def _bias_by_positions(self) -> bool:
    """Whether there is a relative bias that uses positions, not indices."""
    if self.relative_bias_tpl is None:
      return False
    return not self.relative_bias.use_length_as_position

  def _step_bias(self, positions, time_step, length) -> jax.Array | None:
    """Returns the relative bias of new positions, if there is one."""
    if self.relative_bias_tpl is None:
      return None
    if not self._bias_by_positions():
      steps = positions.shape[1]
      return self.relative_bias.extend_step(length, time_step, steps)
    batch = self.get_decode_state('key_positions').shape[0]
    rows = jnp.broadcast_to(positions, (batch, positions.shape[1]))
    keys = self._extend('key_positions', rows, time_step)
    return self.relative_bias.at(positions, keys)
