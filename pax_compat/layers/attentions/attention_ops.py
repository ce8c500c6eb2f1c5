"""Dot-product attention by plain matrix products.

Shapes: B batch, T target time, S source time, N heads of queries, K heads of
keys and values, G = N / K heads of queries for each of those, H dims of a head.
Masks are boolean, True where a target may see a source. Masks and biases
broadcast to [B, N, T, S].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pax_compat.layer_core import flop_scopes
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.attentions.attention_masks import SegmentMask, as_array

# Targets of a block: half of them within the first two limits, so that there
# are few blocks to compile, and more where there would be too many blocks.
_MIN_BLOCK = 64
_MAX_BLOCK = 128
_MAX_BLOCKS = 8

# Masked logits are this times the largest float, as in Lingvo and jax.nn. It is
# finite, so that a target without visible sources has a softmax.
_HIDDEN = -0.7


class AttentionInputs(NamedTuple):
  """Heads of attention, mask and bias.

  Attributes:
    query: [B, T, N, H], scaled.
    key: [B, S, K, H], where K divides N; head n of the queries attends to head
      n // G.
    value: [B, S, K, H].
    mask: an array or a `SegmentMask`; None hides nothing.
    bias: added to the logits; None adds nothing.
    causal: whether sources after the target are hidden too.
  """

  query: jax.Array
  key: jax.Array
  value: jax.Array
  mask: jax.Array | SegmentMask | None = None
  bias: jax.Array | None = None
  causal: bool = False


class AttentionOptions(NamedTuple):
  """How attention weights are computed.

  Attributes:
    logit_cap: if positive, logits are soft-capped to (-cap, cap).
    cap_before_bias: whether they are capped before the bias is added.
    extra_logit: logit of an additional source, whose value is zero; None for no
      such source.
    dropout: dropout of the attention weights [B, N, T, S].
    by_blocks: whether dropout may be applied separately to blocks of targets,
      each with the sources up to its end.
    kernel: an `AttentionKernel` or its name; see `attention_kernels`.
    split: the split mapping of the queries [B, T, N, H], for kernels that the
      compiler cannot partition.
  """

  logit_cap: float = 0.0
  cap_before_bias: bool = False
  extra_logit: float | None = None
  dropout: Callable[[jax.Array], jax.Array] | None = None
  by_blocks: bool = True
  kernel: str = 'auto'
  split: SplitDimsMapping = None


DEFAULT_OPTIONS = AttentionOptions()


def attend(
  inputs: AttentionInputs, options: AttentionOptions = DEFAULT_OPTIONS
) -> jax.Array:
  """Attends by plain matrix products: for CPUs and unsupported options.

  Targets are processed in blocks; with causal attention, a block is multiplied
  only with the sources up to its end. The sum of a softmax divides the small
  result instead of the large array of weights. Logits and sums are float32
  whatever the dtype of the heads, and keys and values are not repeated for the
  heads that share them.

  A target without visible sources gets the mean of the values (of its block's
  sources), not NaN; with an extra logit it gets zeros.

  Returns:
    [B, T, N, H].
  """
  size = inputs.query.shape[1]
  if options.by_blocks and not flop_scopes.is_counting():
    half = min(size // 2, _MAX_BLOCK)
    size = max(half, _MIN_BLOCK, -(-size // _MAX_BLOCKS))
  arrays = (*inputs[:3], as_array(inputs.mask), inputs.bias)
  # A dropout closes over its layer, so that nothing traced for it can be kept.
  by_size = _attend if options.dropout else _attend_traced_once
  return by_size(
    *arrays,
    causal=inputs.causal,
    options=options._replace(split=None),
    size=size,
  )


def _attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  mask: jax.Array | None,
  bias: jax.Array | None,
  *,
  causal: bool,
  options: AttentionOptions,
  size: int,
) -> jax.Array:
  """Attends by blocks of `size` targets; see `AttentionInputs`."""
  targets, heads = query.shape[1:3]
  groups = key.shape[2]
  # Heads first, so that no logits are transposed.
  query, key, value = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
  query, mask, bias = (grouped(x, groups) for x in (query, mask, bias))
  inputs = AttentionInputs(query, key, value, mask, bias, causal)
  if causal:
    encoded = _causal_attention(inputs, options, size)
  elif options.dropout is None and size < targets and targets % size == 0:
    encoded = _blockwise_attention(inputs, options, size)
  else:
    encoded = _attend_block(inputs, options)
  encoded = encoded.reshape(-1, heads, targets, value.shape[-1])
  return encoded.transpose(0, 2, 1, 3)


# The layers of a network do the same, and tracing it takes long.
_attend_traced_once = jax.jit(
  _attend, static_argnames=('causal', 'options', 'size'), inline=True
)


def _causal_attention(
  inputs: AttentionInputs, options: AttentionOptions, size: int
) -> jax.Array:
  """Attends by blocks of targets, each to the sources up to its end.

  Args:
    inputs: query [B, K, G, T, H], key and value [B, K, S, H]; mask and bias
      broadcast to [B, K, G, T, S].
    options: see `AttentionOptions`.
    size: targets of a block.

  Returns:
    [B, K, G, T, H].
  """
  query, key, value, mask, bias, _ = inputs
  targets, sources = query.shape[3], key.shape[2]
  by_blocks = size < targets
  encoded = []
  for start in range(0, targets, size):
    stop = min(start + size, targets)
    seen = min(stop, sources) if by_blocks else sources
    visible = jnp.arange(start, stop)[:, None] >= jnp.arange(seen)
    if mask is not None:
      visible &= _slice(mask, start, stop, seen)
    block = AttentionInputs(
      query[:, :, :, start:stop],
      key[:, :, :seen],
      value[:, :, :seen],
      visible,
      _slice(bias, start, stop, seen),
    )
    encoded.append(_attend_block(block, options))
  return encoded[0] if len(encoded) == 1 else jnp.concatenate(encoded, axis=3)


def _blockwise_attention(
  inputs: AttentionInputs, options: AttentionOptions, size: int
) -> jax.Array:
  """Attends by blocks of targets, with the weights of one in memory at a time.

  The backward pass recomputes the weights of each block, which takes no longer
  than saving them.

  Args:
    inputs: as for `_causal_attention`.
    options: see `AttentionOptions`.
    size: targets of a block; T is a multiple of it.
  """
  targets = inputs.query.shape[3]

  def in_blocks(x):
    x = jnp.broadcast_to(x, (*x.shape[:3], targets, x.shape[4]))
    x = x.reshape(*x.shape[:3], -1, size, x.shape[4])
    return jnp.moveaxis(x, 3, 0)

  @jax.checkpoint
  def attend_one(block):
    query, mask, bias = block
    return _attend_block(
      inputs._replace(query=query, mask=mask, bias=bias), options
    )

  blocks = jax.tree.map(in_blocks, (inputs.query, inputs.mask, inputs.bias))
  encoded = jnp.moveaxis(jax.lax.map(attend_one, blocks), 0, 3)
  return encoded.reshape(*inputs.query.shape[:4], -1)


def _attend_block(
  inputs: AttentionInputs, options: AttentionOptions
) -> jax.Array:
  """Attends from queries [B, K, G, T, H] to sources; ignores `causal`."""
  value, dropout = inputs.value, options.dropout
  weights, total = exponentials(
    _logits(inputs, options), inputs.mask, options.extra_logit
  )
  if dropout is not None:
    batch, groups, group, *rest = weights.shape
    shape = (batch, groups * group, *rest)
    weights = dropout(weights.reshape(shape)).reshape(weights.shape)
  weights = weights.astype(value.dtype)
  encoded = _multiply('bkts,bksh->bkth', weights, value)
  return (encoded / total[..., None]).astype(value.dtype)


def _multiply(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
  """Multiplies [B, K, G, T, ...] with [B, K, S, H], in float32.

  G and T are merged into one dimension: with separate dimensions, XLA on a CPU
  copies the whole array of logits only to change its layout.

  Args:
    equation: einsum equation of the merged arrays.
    x: [B, K, G, T, H] or [B, K, G, T, S].
    y: [B, K, S, H].
  """
  merged = x.reshape(*x.shape[:2], -1, x.shape[-1])
  product = jnp.einsum(equation, merged, y, preferred_element_type=jnp.float32)
  return product.reshape(*x.shape[:-1], -1)


def grouped(x: jax.Array | None, groups: int) -> jax.Array | None:
  """Reshapes an array that broadcasts to [B, N, ...] to [B, K, G, ...]."""
  if x is None:
    return None
  if x.shape[1] == 1:
    return x[:, :, None]
  return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _slice(x, start: int, stop: int, seen: int) -> jax.Array | None:
  """Returns targets start..stop and sources 0..seen of a mask or bias."""
  if x is None:
    return None
  targets = slice(start, stop) if x.shape[3] > 1 else slice(None)
  return x[:, :, :, targets, : seen if x.shape[4] > 1 else None]


def _logits(inputs: AttentionInputs, options: AttentionOptions) -> jax.Array:
  """Returns the logits [B, K, G, T, S]."""
  products = _multiply('bkth,bksh->bkts', inputs.query, inputs.key)
  return capped_logits(products, inputs.bias, options)


def capped_logits(
  logits: jax.Array, bias: jax.Array | None, options: AttentionOptions
) -> jax.Array:
  """Returns products of queries and keys with the bias, soft-capped."""
  cap = options.logit_cap
  if bias is not None and not options.cap_before_bias:
    logits += bias
  if cap > 0:
    logits = cap * jnp.tanh(logits / cap)
  if bias is not None and options.cap_before_bias:
    logits += bias
  return logits


def exponentials(
  logits: jax.Array, mask: jax.Array | None, extra_logit: float | None
) -> tuple[jax.Array, jax.Array]:
  """Returns the softmax's exponentials [B, K, G, T, S] and their sums."""
  if mask is not None:
    logits = jnp.where(mask, logits, _HIDDEN * jnp.finfo(logits.dtype).max)
  largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  if extra_logit is not None:
    largest = jnp.maximum(largest, extra_logit)
  exponentials = jnp.exp(logits - largest)
  total = jnp.sum(exponentials, axis=-1)
  if extra_logit is not None:
    total += jnp.exp(extra_logit - largest[..., 0])
  return exponentials, total


def encode_with_probs(
  encode: Callable[[AttentionInputs], jax.Array], inputs: AttentionInputs
) -> tuple[jax.Array, jax.Array]:
  """Returns the contexts [B, T, N, H] and the weights [B, N, T, S].

  Args:
    encode: the attention, returns contexts [B, T, N, H].
    inputs: its inputs.
  """
  # With unit vectors as values, the contexts are the weights [B, T, N, S].
  value, heads = inputs.value, inputs.query.shape[2]
  units = jnp.eye(value.shape[1], dtype=value.dtype)[None, :, None]
  units = jnp.broadcast_to(units, (*value.shape[:3], value.shape[1]))
  probs = encode(inputs._replace(value=units))
  value = jnp.repeat(value, heads // value.shape[2], axis=2)
  encoded = jnp.einsum('btns,bsnh->btnh', probs, value)
  return encoded, jnp.swapaxes(probs, 1, 2)


def has_visible_source(
  mask: jax.Array, *, targets: int, causal: bool
) -> jax.Array:
  """Returns which targets have a visible source: broadcasts to [B, N, T].

  Args:
    mask: broadcasts to [B, N, T, S].
    targets: T.
    causal: whether sources after the target are hidden too.
  """
  if causal:
    past = jnp.arange(targets)[:, None] >= jnp.arange(mask.shape[3])
    mask = mask & past
  return jnp.any(mask, axis=-1)
