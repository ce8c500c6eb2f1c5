"""Attention to a prefix whose keys and values several samples share.

The cache of the prefix is not repeated for the samples of a row (lazy prefix
broadcast): queries of all samples are multiplied with the one copy. Samples may
themselves be the prefix of further samples.

Shapes: B rows, N samples of a row, R = B * N, T new positions, P positions of a
prefix, S positions after all prefixes, K heads of keys and values, G heads of
queries for each of those, H dims of a head.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.base_layer import DECODE_CACHE, PREFIX_DECODE_CACHE
from pax_compat.layer_core.decode_states import StateFn
from pax_compat.layer_core.shared_prefixes import SHARED_STATES, prefix_name
from pax_compat.layers.attentions import (
  attention_masks,
  attention_ops,
  dot_product,
  kv_cache,
  multi_query_attention,
)
from pax_compat.layers.attentions.attention_masks import Mask
from pax_compat.layers.attentions.attention_ops import (
  AttentionInputs,
  AttentionOptions,
)


def attend(
  inputs: AttentionInputs,
  options: AttentionOptions,
  prefixes: Sequence[tuple[jax.Array, jax.Array]],
) -> jax.Array:
  """Attends to prefixes and to what comes after them; returns [R, T, N, H].

  Args:
    inputs: queries [R, T, N, H]; keys and values [R, S, K, H] after the
      prefixes; mask and bias of all positions, the prefixes' first.
    options: without dropout.
    prefixes: keys and values [B, P, K, H] of each, in order; R is a multiple of
      each B.
  """
  rows, steps, heads, _ = inputs.query.shape
  groups = inputs.key.shape[2]
  query, mask, bias = (
    attention_ops.grouped(x, groups)
    for x in (
      inputs.query.transpose(0, 2, 1, 3),
      attention_masks.as_array(inputs.mask),
      inputs.bias,
    )
  )
  parts = [*prefixes, (inputs.key, inputs.value)]
  products = [_multiply('bnkgth,bskh->bnkgts', query, key) for key, _ in parts]
  logits = attention_ops.capped_logits(
    jnp.concatenate(products, axis=-1), bias, options
  )
  weights, total = attention_ops.exponentials(logits, mask, options.extra_logit)
  weights = weights.astype(inputs.value.dtype)
  encoded, start = 0.0, 0
  for _, value in parts:
    stop = start + value.shape[1]
    encoded += _multiply('bnkgts,bskh->bnkgth', weights[..., start:stop], value)
    start = stop
  encoded = (encoded / total[..., None]).astype(inputs.value.dtype)
  return encoded.reshape(rows, heads, steps, -1).transpose(0, 2, 1, 3)


def _multiply(equation: str, x: jax.Array, shared: jax.Array) -> jax.Array:
  """Multiplies [R, K, G, T, ...] with [B, S, K, H], in float32."""
  by_row = x.reshape(shared.shape[0], -1, *x.shape[1:])
  product = jnp.einsum(
    equation, by_row, shared, preferred_element_type=jnp.float32
  )
  return product.reshape(x.shape[0], *product.shape[2:])


class LazyPrefix:
  """Of an attention layer: samples share the cache of their prefix.

  Not a layer itself, so that fields and shardings are those of the attention.
  """

  def lazy_broadcast_prefix(self, num_suffix_samples: int, suffix_length: int):
    """Makes what is cached so far the prefix of several samples.

    It is moved to the collection 'prefix_decoder_cache', which must be mutable.
    Further steps have the rows [R, ...], those of the samples of a row next to
    each other, and `time_step` counts the prefix.

    Args:
      num_suffix_samples: number of samples of each row of the cache.
      suffix_length: number of positions that are cached for each.
    """
    number = len(self._prefixes())
    for name in SHARED_STATES:
      if not self.has_variable(DECODE_CACHE, name):
        continue
      state = self.get_decode_state(name)
      self.put_variable(PREFIX_DECODE_CACHE, prefix_name(name, number), state)
      rows = state.shape[0] * num_suffix_samples
      self.update_decode_state(
        name, jnp.zeros((rows, suffix_length, *state.shape[2:]), state.dtype)
      )
    if self._bias_by_positions():
      raise errors.UserError(
        f'{type(self).__name__}.relative_bias_tpl: samples that share a prefix'
        ' do not know its positions; expected use_length_as_position=True'
      )
    if self.ngrammer_tpl is not None:
      raise errors.UserError(
        f'{type(self).__name__}.ngrammer_tpl: samples that share a prefix do'
        ' not know its contexts; expected None'
      )
    if self.dconv_qkv:
      self._repeat_windows(num_suffix_samples)

  def right_align_decode_state_with_prefix(
    self, max_prefix_size: int, right_align_fn: StateFn
  ):
    """Puts prefixes before the cache of each sample, and aligns the rows.

    There are no shared prefixes any more: they have no positions.

    Args:
      max_prefix_size: number of last positions of the prefixes that are kept.
      right_align_fn: (state [R, T, ...], 0, 1) -> state, aligns rows.
    """
    number = len(self._prefixes())
    for name in SHARED_STATES:
      if not self.has_variable(DECODE_CACHE, name):
        continue
      state = self.get_decode_state(name)
      parts = []
      for index in range(number):
        shared_name = prefix_name(name, index)
        shared = self.get_variable(PREFIX_DECODE_CACHE, shared_name)
        parts.append(jnp.repeat(shared, len(state) // len(shared), axis=0))
        self.put_variable(PREFIX_DECODE_CACHE, shared_name, shared[:, :0])
      if parts:
        before = jnp.concatenate(parts, axis=1)
        first = max(before.shape[1] - max_prefix_size, 0)
        state = jnp.concatenate([before[:, first:], state], axis=1)
      self.update_decode_state(name, right_align_fn(state, 0, 1))

  def _repeat_windows(self, samples: int):
    """Repeats the last inputs of the convolutions for the samples."""
    before = self.dconv_kernel_size - 1
    for name in ('dconv_q', 'dconv_k', 'dconv_v'):
      window = f'{name}_window'
      if self.has_variable(DECODE_CACHE, window):
        inputs = self.get_decode_state(window)
      else:
        inputs = self.get_decode_state(f'{name}_inputs')
        inputs = jnp.pad(inputs, ((0, 0), (before, 0), (0, 0), (0, 0)))
        inputs = inputs[:, inputs.shape[1] - before :]
      self.update_decode_state(window, jnp.repeat(inputs, samples, axis=0))

  @attention_masks.takes_structure
  def extend_step(
    self, query_vec: jax.Array, *, atten_mask: Mask = None, **keywords
  ) -> jax.Array:
    """Attends to the prefixes, too; see `DecodableAttention.extend_step`.

    Args:
      query_vec: [R, T, D] or [R, D].
      atten_mask: may have more sources than there are positions so far.
      **keywords: as there.
    """
    if hasattr(atten_mask, 'ndim') and not keywords.get('is_cross_attention'):
      atten_mask = atten_mask[..., : self.decoding_state_sequence_length()]
    return super().extend_step(query_vec, atten_mask=atten_mask, **keywords)

  def _prefix_length(self) -> int:
    return sum(key.shape[1] for key, _ in self._prefixes())

  def _prefixes(self) -> list[tuple[jax.Array, jax.Array]]:
    """Returns the keys and values [B, P, K, H] of each prefix."""
    found = []
    while self.has_variable(
      PREFIX_DECODE_CACHE, prefix_name('key_state', len(found))
    ):
      found.append(
        (
          self._shared('key_state', len(found), self._key_dtype()),
          self._shared('value_state', len(found), self.compute_dtype),
        )
      )
    return found

  def _shared(self, name: str, number: int, dtype: jnp.dtype) -> jax.Array:
    state = self.get_variable(PREFIX_DECODE_CACHE, prefix_name(name, number))
    if not kv_cache.is_quantized(self.kv_cache_dtype):
      return state if self.kv_cache_dtype is None else state.astype(dtype)
    scale = self.get_variable(
      PREFIX_DECODE_CACHE, prefix_name(f'{name}_scale', number)
    )
    return kv_cache.dequantize(state, scale, dtype)

  def _run_kernel(
    self, inputs: AttentionInputs, options: AttentionOptions
  ) -> jax.Array:
    # Those that have become part of the cache of each sample have no positions.
    prefixes = [pair for pair in self._prefixes() if pair[0].shape[1]]
    length = self._prefix_length() + inputs.key.shape[1]
    mask = attention_masks.as_array(inputs.mask)
    # The mask of a decoding step has all positions; others, of a whole pass and
    # of cross attention, do not see prefixes.
    if not prefixes or mask is None or mask.shape[-1] != length:
      return super()._run_kernel(inputs, options)
    if options.dropout is not None:
      raise errors.UserError(
        f'{type(self).__name__}.atten_dropout_prob: samples that share a prefix'
        ' are decoded without dropout; expected the evaluation mode'
      )
    return attend(inputs, options, prefixes)


class DotProductAttentionWithLPB(LazyPrefix, dot_product.DotProductAttention):
  """`DotProductAttention` whose samples may share the cache of a prefix."""


class MultiQueryDotProductAttentionLPB(
  LazyPrefix, multi_query_attention.MultiQueryDotProductAttention
):
  """`MultiQueryDotProductAttention` whose samples may share a prefix."""
