"""Decoding with attention: caches of keys and values, decoding steps.

A cache is allocated by `init_states`, or is what `__call__` has computed, if
the collection `decoder_cache` is mutable: its keys and values then count as
decoded up to the step at which decoding starts.

Shapes: B batch, L decoding steps at once, S capacity of the cache in positions,
D model dims, N heads, K heads of keys and values, H dims of a head.
"""

import contextlib
import contextvars
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PREFIX_DECODE_CACHE
from pax_compat.config_core import context_values
from pax_compat.layer_core import atten_probs
from pax_compat.layer_core.decode_states import StateFn
from pax_compat.layers.attentions import (
  attention_kernels,
  attention_masks,
  attention_ops,
  kv_cache,
)
from pax_compat.layers.attentions.attention_masks import Mask
from pax_compat.layers.attentions.attention_ops import (
  AttentionInputs,
  AttentionOptions,
)
from pax_compat.layers.attentions.relative_bias import or_indices

# The decode state with contexts before n-grams are added, as in Pax.
_CONTEXTS = 'encoded_pre_ngrammer'

# Whether `__call__` fills the cache, in this thread.
_fills = contextvars.ContextVar('fills_the_decode_cache', default=True)


def without_cache() -> contextlib.AbstractContextManager:
  """Context in which calls of attention do not fill the decode cache.

  For layers that are never decoded step by step, such as those of an encoder.
  """
  return context_values.set_within(_fills, False)


class DecodableAttention(base_layer.BaseLayer):
  """Base class of the attention layers: their decoding cache and steps.

  Subclasses define the projections and the attention itself. The cache contains
  keys as they are multiplied with queries, already rotated and normalised.

  Attributes:
    kv_cache_dtype: the type of the cached keys and values: 'float32',
      'bfloat16', 'float16', or 'int8' with a scale for each position and head;
      None, the default, is that of the computation.
    decode_cache: whether a call keeps keys and values for decoding steps, if
      the collection `decoder_cache` is mutable. False is for attention that is
      never decoded.
    consolidate_rope_key_state: no effect, but in Pax, where it leaves keys
      before their rotary embedding out of the cache; here they are never in it.
  """

  SILENT_UNLESS_SET: ClassVar[Sequence[str]] = (
    *base_layer.BaseLayer.SILENT_UNLESS_SET,
    'kv_cache_dtype',
    'decode_cache',
    'consolidate_rope_key_state',
  )

  kv_cache_dtype: str | None = None
  decode_cache: bool = True
  consolidate_rope_key_state: bool = False

  def init_states(self, target_batch_size: int, target_max_length: int):
    """Allocates the cache of keys and values.

    Args:
      target_batch_size: B.
      target_max_length: S, the number of positions to decode, including a
        prefix.
    """
    if not self.decode_cache:
      raise errors.UserError(
        f'{type(self).__name__}.decode_cache is False, so it is not decoded;'
        ' expected True'
      )
    heads = (self._kv_heads(), self._head_dims())
    batch, length = target_batch_size, target_max_length
    shape = (batch, length, *heads)
    dtype = self.compute_dtype
    for name, computed in (
      ('key_state', self._key_dtype()),
      ('value_state', dtype),
    ):
      stored = self.kv_cache_dtype or computed
      self.update_decode_state(name, jnp.zeros(shape, stored))
      if kv_cache.is_quantized(self.kv_cache_dtype):
        self.update_decode_state(f'{name}_scale', jnp.zeros(shape[:3]))
    if self._bias_by_positions():
      self.update_decode_state(
        'key_positions', jnp.zeros((batch, length), jnp.int32)
      )
    if self.dconv_qkv:
      for name in ('dconv_q', 'dconv_k', 'dconv_v'):
        self._store_window(name, batch)
    if self.ngrammer_tpl is not None:
      contexts = (batch, length, self.num_heads, self._head_dims())
      self.update_decode_state(_CONTEXTS, jnp.zeros(contexts, dtype))

  def _store_window(self, name: str, batch: int):
    """Allocates the inputs of a convolution before the next step."""
    dims = getattr(self, name).hidden_dims
    window = jnp.zeros(
      (batch, self.dconv_kernel_size - 1, *dims), self.compute_dtype
    )
    self.update_decode_state(f'{name}_window', window)

  def _fills_cache(self) -> bool:
    """Whether `__call__` keeps keys and values for decoding steps."""
    return (
      _fills.get()
      and self.decode_cache
      and self.is_mutable_collection(DECODE_CACHE)
      and not self.is_initializing()
    )

  def _fill_cache(
    self, key: jax.Array, value: jax.Array, positions: jax.Array | None
  ):
    """Keeps keys and values [B, S, K, H] of `__call__` for decoding steps."""
    if not self._fills_cache():
      return
    self._store('key_state', key)
    self._store('value_state', value)
    if self._bias_by_positions():
      positions = or_indices(positions, key)
      rows = jnp.broadcast_to(positions, key.shape[:2])
      self.update_decode_state('key_positions', rows.astype(jnp.int32))

  def _convolved(
    self, name: str, inputs: jax.Array, positions: jax.Array | None
  ) -> jax.Array:
    """Returns heads [B, T, N, H], convolved along time by a child.

    Their inputs are kept for decoding steps, as in `_fill_cache`.
    """
    if self._fills_cache():
      self.update_decode_state(f'{name}_inputs', inputs)
    return getattr(self, name)(inputs, axis=1, segment_pos=positions)

  def transform_decode_state(self, transform_fn: StateFn):
    """Changes the cache between steps, as in Pax.

    States of subclasses that have the dimensions [B, ...] are [B, T, ...].

    Args:
      transform_fn: see `StateFn`.
    """
    self._transform_own_states(
      transform_fn,
      [
        name
        for name in self._own_decode_states()
        if not name.endswith('_window') and not name.startswith('cross_')
      ],
    )

  def transform_cross_states(self, transform_fn: StateFn):
    """Changes the cache of cross attention: rows, and not the source's length.

    Args:
      transform_fn: see `StateFn`.
    """
    # Inputs of a convolution of queries are of the decoded positions.
    self._transform_own_states(transform_fn, ['dconv_q_inputs'])

  def lazy_broadcast_prefix(self, num_suffix_samples: int, suffix_length: int):
    """Raises a UserError: only some attentions read shared prefixes."""
    del num_suffix_samples, suffix_length
    self._refuse_shared_prefixes('lazy_broadcast_prefix()')

  def right_align_decode_state_with_prefix(
    self, max_prefix_size: int, right_align_fn: StateFn
  ):
    """Raises a UserError: only some attentions read shared prefixes."""
    del max_prefix_size, right_align_fn
    self._refuse_shared_prefixes('right_align_decode_state_with_prefix()')

  def _refuse_shared_prefixes(self, what: str):
    raise errors.UserError(
      f'{type(self).__name__}: {what}: samples share a prefix; expected an'
      ' attention that reads it, DotProductAttentionWithLPB or'
      ' MultiQueryDotProductAttentionLPB'
    )

  @attention_masks.takes_structure
  def extend_step(
    self,
    query_vec: jax.Array,
    *,
    atten_mask: Mask = None,
    time_step: jax.Array | int,
    segment_pos: jax.Array | None = None,
    is_cross_attention: bool = False,
  ) -> jax.Array:
    """Attends from new positions to themselves and all positions before them.

    Args:
      query_vec: [B, L, D], the new positions; or [B, D], a single one. L is 1
        in a decoding step and the length of the prefix in the first call.
      atten_mask: an `AttentionMask`, or an additive or boolean array that
        broadcasts to [B, N, L, S], or [B, 1, S] with a single position.
        Positions not decoded yet are hidden in any case; later ones of the L
        new positions only by this mask. None is causal.
      time_step: [], index of the first new position. With `dconv_qkv`, steps
        must follow each other without gaps.
      segment_pos: [B, L] or [B], as in `DotProductAttention`; None takes the
        indices, from `time_step` on.
      is_cross_attention: whether to attend to the source of
        `init_cross_states` instead; see `cross_step`.

    Returns:
      [B, L, D], or [B, D] for a single position.

    Raises:
      UserError: the cache is missing or too small.
    """
    if query_vec.ndim == 2:
      return self.extend_step(
        query_vec[:, None],
        atten_mask=attention_masks.with_steps(atten_mask),
        time_step=time_step,
        segment_pos=None if segment_pos is None else segment_pos[:, None],
        is_cross_attention=is_cross_attention,
      )[:, 0]
    positions = segment_pos
    if positions is None:
      positions = time_step + jnp.arange(query_vec.shape[1])[None]
    if is_cross_attention:
      return self.cross_step(
        query_vec,
        atten_mask=atten_mask,
        segment_pos=positions,
        time_step=time_step,
      )
    mask = attention_masks.CAUSAL
    if atten_mask is not None:
      mask = self._mask(atten_mask)
    steps, prefix = query_vec.shape[1], self._prefix_length()
    length = prefix + self._check_capacity(query_vec)
    query, key, value = self._project(query_vec, query_vec, query_vec)
    if self.dconv_qkv:
      steps_at = (positions, time_step)
      query = self._convolve_step('dconv_q', query, *steps_at)
      key = self._convolve_step('dconv_k', key, *steps_at)
      value = self._convolve_step('dconv_v', value, *steps_at)
    key = self._finish_key(key, positions)
    known = attention_masks.step_mask(
      time_step, steps, length, causal=mask.causal
    )
    inputs = AttentionInputs(
      self._finish_query(query, positions),
      self._extend_cache('key_state', key, time_step - prefix),
      self._extend_cache('value_state', value, time_step - prefix),
      mask=attention_masks.combine_masks(mask.visible, known),
      bias=self._step_bias(positions, time_step, length),
    )
    return self._attend(
      inputs, one_step=True, time_step=time_step, positions=positions
    )[0]

  def decoding_state_sequence_length(self) -> int:
    """Returns S, the capacity of the cache in positions."""
    cached = self.get_decode_state('key_state').shape[1]
    return self._prefix_length() + cached

  def _prefix_length(self) -> int:
    """Returns the number of positions of a prefix that samples share."""
    if self.has_variable(PREFIX_DECODE_CACHE, 'key_state_0_pfx'):
      self._refuse_shared_prefixes('extend_step()')
    return 0

  def _returns_probs(self) -> bool:
    """Whether `__call__` returns the attention weights."""
    return atten_probs.are_returned(self.return_atten_probs)

  def _encode_with_probs(
    self, inputs: AttentionInputs, time_step: jax.Array | int | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the contexts [B, T, N, H] and the weights [B, N, T, S]."""

    def encode(of_units):
      return self._encode(of_units, time_step)

    return attention_ops.encode_with_probs(encode, inputs)

  def _create_ngrammer(self):
    """Creates the child that adds embeddings of pairs to contexts."""
    tpl = self.ngrammer_tpl
    if not hasattr(tpl.cls, 'extend_steps'):
      raise errors.UserError(
        f'{type(self).__name__}.ngrammer_tpl is a {tpl.cls.__name__}; expected'
        ' a VQNgrammer, which pairs vectors without ids'
      )
    self._create('ngrammer', 'ngrammer_tpl', tpl, **self._heads(self.num_heads))

  def _pairs_by_attention(self) -> bool:
    """Whether n-grams are of positions that attend to each other."""
    tpl = self.ngrammer_tpl
    return getattr(tpl, 'ngram_using_attention_scores', False)

  def _add_ngrams(
    self,
    encoded: jax.Array,
    scores: jax.Array | None,
    positions: jax.Array | None,
    time_step: jax.Array | int | None,
  ) -> jax.Array:
    """Adds embeddings of pairs of contexts to contexts [B, T, N, H].

    Args:
      encoded: the contexts.
      scores: [B, N, T, S], the attention weights, if they define the pairs.
      positions: [B, T], see `query_segment_pos`.
      time_step: index of the first of the T decoding steps; None for all
        positions, whose contexts are kept for decoding steps.
    """
    if time_step is not None:
      return self.ngrammer.extend_steps(
        self._extend(_CONTEXTS, encoded, time_step),
        time_step,
        encoded.shape[1],
        positions,
        merge_heads=False,
        attention_scores=scores,
      )
    if self._fills_cache():
      self.update_decode_state(_CONTEXTS, encoded)
    return self.ngrammer(
      input_ids=None,
      input_embs=encoded,
      segment_pos=positions,
      merge_heads=False,
      attention_scores=scores,
    )

  def _run_kernel(
    self, inputs: AttentionInputs, options: AttentionOptions
  ) -> jax.Array:
    """Returns the contexts [B, T, N, H]."""
    return attention_kernels.dot_product_attention(inputs, options)

  def init_cross_states(
    self,
    key_vec: jax.Array,
    value_vec: jax.Array | None = None,
    *,
    key_segment_pos: jax.Array | None = None,
  ):
    """Caches the projected source of cross attention, for all steps.

    Args:
      key_vec: [B, S, D].
      value_vec: [B, S, D]; None takes `key_vec`.
      key_segment_pos: [B, S]; None takes 0..S-1.
    """
    self._check_cross()
    value_vec = key_vec if value_vec is None else value_vec
    key, value = self._project_source(key_vec, value_vec)
    if self.dconv_qkv:
      key = self.dconv_k(key, axis=1, segment_pos=key_segment_pos)
      value = self.dconv_v(value, axis=1, segment_pos=key_segment_pos)
      self._store_window('dconv_q', len(key))
    key = self._finish_key(key, key_segment_pos)
    self._store('cross_key_state', key, shared=True)
    self._store('cross_value_state', value, shared=True)
    if self.relative_bias_tpl is not None:
      if key_segment_pos is None:
        key_segment_pos = jnp.arange(key.shape[1])[None]
      self.update_decode_state(
        'cross_key_positions', key_segment_pos, shared=True
      )

  def cross_step(
    self,
    query_vec: jax.Array,
    *,
    atten_mask: Mask = None,
    segment_pos: jax.Array | None = None,
    time_step: jax.Array | int | None = None,
  ) -> jax.Array:
    """Attends from new positions to the source of `init_cross_states`.

    Args:
      query_vec: [B, L, D].
      atten_mask: as for `DotProductAttention`, for [B, N, L, S]; None hides
        nothing.
      segment_pos: [B, L], positions of the queries; required with rotary
        embeddings, convolutions or a relative bias.
      time_step: [], index of the first of them; required with convolutions or a
        window.

    Returns:
      [B, L, D].

    Raises:
      UserError: positions or the cached source are missing.
    """
    self._check_cross()
    mask = self._mask(atten_mask)
    biased = self.relative_bias_tpl is not None
    positioned = biased or self._rotates() or self.dconv_qkv
    if segment_pos is None and positioned:
      raise errors.UserError(
        f'{type(self).__name__}.cross_step: expected segment_pos, because this'
        ' attention uses positions'
      )
    bias = None
    if biased:
      bias = self.relative_bias.at(
        segment_pos, self.get_decode_state(self._cross_state('key_positions'))
      )
    query = self._project_query(query_vec)
    if self.dconv_qkv:
      query = self._convolve_step('dconv_q', query, segment_pos, time_step)
    inputs = AttentionInputs(
      self._finish_query(query, segment_pos),
      self._load(self._cross_state('key_state'), self._key_dtype()),
      self._load(self._cross_state('value_state'), self.compute_dtype),
      mask.visible,
      bias,
      mask.causal,
    )
    return self._attend(inputs, one_step=True, time_step=time_step)[0]

  def _check_cache(self):
    where = type(self).__name__
    kv_cache.check(self.kv_cache_dtype, where=f'{where}.kv_cache_dtype')
    if self.consolidate_rope_key_state and not self._rotates():
      raise errors.UserError(
        f'{where}.consolidate_rope_key_state is True, but keys are not rotated;'
        ' expected rotary position embeddings'
      )

  def _key_dtype(self) -> jnp.dtype:
    """Returns the type of keys as they are multiplied with queries."""
    in_float32 = self._rotates() and not self.cast_rotary_position_emb
    return jnp.dtype(jnp.float32 if in_float32 else self.compute_dtype)

  def _store(self, name: str, value: jax.Array, *, shared: bool = False):
    """Caches keys or values [B, S, K, H]; see `update_decode_state`."""
    if kv_cache.is_quantized(self.kv_cache_dtype):
      value, scale = kv_cache.quantize(value)
      self.update_decode_state(f'{name}_scale', scale, shared=shared)
    elif self.kv_cache_dtype is not None:
      value = value.astype(self.kv_cache_dtype)
    self.update_decode_state(name, value, shared=shared)

  def _load(self, name: str, dtype: jnp.dtype) -> jax.Array:
    """Returns cached keys or values [B, S, K, H] in the type `dtype`."""
    state = self.get_decode_state(name)
    if kv_cache.is_quantized(self.kv_cache_dtype):
      scale = self.get_decode_state(f'{name}_scale')
      return kv_cache.dequantize(state, scale, dtype)
    return state if self.kv_cache_dtype is None else state.astype(dtype)

  def _extend_cache(
    self, name: str, value: jax.Array, time_step: jax.Array | int
  ) -> jax.Array:
    """Caches keys or values [B, L, K, H]; returns all of them, [B, S, K, H]."""
    dtype = self._key_dtype() if name == 'key_state' else self.compute_dtype
    if kv_cache.is_quantized(self.kv_cache_dtype):
      value, scale = kv_cache.quantize(value)
      self._extend(f'{name}_scale', scale, time_step)
    self._extend(name, value, time_step)
    return self._load(name, dtype)

  def _cross_state(self, name: str) -> str:
    """Returns the name of what `init_cross_states` or `__call__` has cached."""
    own = f'cross_{name}'
    called = self.has_variable(DECODE_CACHE, name)
    return name if called and not self.has_variable(DECODE_CACHE, own) else own

  def _check_cross(self):
    if self.combine_qkv:
      raise errors.UserError(
        f'{type(self).__name__}.combine_qkv is for self attention; it does not'
        ' support cross attention'
      )
    if self.ngrammer_tpl is not None:
      raise errors.UserError(
        f'{type(self).__name__}.ngrammer_tpl is for self attention; decoding'
        ' does not support it in cross attention'
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
    """Writes `value` [B, L, ...] at `time_step`; returns the whole state."""
    state = self.get_decode_state(name)
    state = jax.lax.dynamic_update_slice_in_dim(
      state, value.astype(state.dtype), time_step, axis=1
    )
    if state.ndim == 4:
      state = self.shard(state, self._key_mapping())
    self.update_decode_state(name, state)
    return state

  def _convolve_step(
    self,
    name: str,
    inputs: jax.Array,
    positions: jax.Array,
    time_step: jax.Array | int,
  ) -> jax.Array:
    """Convolves new heads [B, L, N, H] with those of earlier steps."""
    before, steps = self.dconv_kernel_size - 1, inputs.shape[1]
    if not self.has_variable(DECODE_CACHE, f'{name}_window'):
      kept = self._extend(f'{name}_inputs', inputs, time_step)
      kept = jnp.pad(kept, ((0, 0), (before, 0), (0, 0), (0, 0)))
      inputs = jax.lax.dynamic_slice_in_dim(
        kept, time_step, before + steps, axis=1
      )
    else:
      window = self.get_decode_state(f'{name}_window')
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
