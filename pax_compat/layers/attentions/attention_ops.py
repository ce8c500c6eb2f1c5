"""The computation of attention, and which kernel does it.

Shapes: B batch, T target time, S source time, N heads of queries, K heads of
keys and values, G = N / K heads of queries for each of those, H dims of a head.
Masks are boolean, True where a target may see a source. Masks and biases
broadcast to [B, N, T, S].
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

# Targets of a block, at least, and blocks, at most.
_BLOCK_SIZE = 64
_MAX_BLOCKS = 8

# What a hidden logit is set to, as a share of the largest float. Lingvo and
# jax.nn use the same: finite, so that a target that sees nothing has a softmax.
_HIDDEN = -0.7


def dot_product_attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  mask: jax.Array | None = None,
  bias: jax.Array | None = None,
  causal: bool = False,
  logit_cap: float = 0.0,
  cap_before_bias: bool = False,
  extra_logit: float | None = None,
  dropout: Callable[[jax.Array], jax.Array] | None = None,
  by_blocks: bool = True,
) -> jax.Array:
  """Attends with the kernel that suits the device and what is asked for.

  On accelerators `jax.nn.dot_product_attention`, where it can do it: it has no
  logit cap, no extra logit, no dropout and one dtype for all heads. Else
  `attend`, whose arguments and result are the same.
  """
  fused = (
    logit_cap <= 0
    and extra_logit is None
    and dropout is None
    and query.dtype == key.dtype == value.dtype
  )
  if not fused or jax.default_backend() == 'cpu':
    return attend(
      query,
      key,
      value,
      mask=mask,
      bias=bias,
      causal=causal,
      logit_cap=logit_cap,
      cap_before_bias=cap_before_bias,
      extra_logit=extra_logit,
      dropout=dropout,
      by_blocks=by_blocks,
    )
  kernel = 'xla'
  if bias is None and _flash_attention_fits(query, key):
    kernel = 'cudnn'
    if mask is not None:
      targets, sources = query.shape[1], key.shape[1]
      mask = jnp.broadcast_to(mask, (*mask.shape[:2], targets, sources))
  return jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias=bias,
    mask=mask,
    is_causal=causal,
    scale=1.0,
    implementation=kernel,
  )


def _flash_attention_fits(query: jax.Array, key: jax.Array) -> bool:
  """Whether cuDNN is there and its flash attention computes these heads."""
  device = jax.devices()[0]
  if 'cuda' not in device.client.platform_version.lower():
    return False
  capability = float(device.compute_capability)
  return flash_attention_fits(query, key, compute_capability=capability)


def flash_attention_fits(
  query: jax.Array, key: jax.Array, *, compute_capability: float
) -> bool:
  """Whether cuDNN's flash attention computes these heads.

  Biases are not for it, because it has a gradient for few shapes of them, and
  to it a mask is a bias, which has to be even in both times.

  Args:
    query: [B, T, N, H].
    key: [B, S, K, H].
    compute_capability: of the NVIDIA GPU.
  """
  return (
    compute_capability >= 8.0
    and query.dtype in (jnp.bfloat16, jnp.float16)
    and query.dtype == key.dtype
    and query.shape[-1] % 8 == 0
    and query.shape[-1] <= 128
    and query.shape[1] % 2 == 0
    and key.shape[1] % 2 == 0
  )


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  mask: jax.Array | None = None,
  bias: jax.Array | None = None,
  causal: bool = False,
  logit_cap: float = 0.0,
  cap_before_bias: bool = False,
  extra_logit: float | None = None,
  dropout: Callable[[jax.Array], jax.Array] | None = None,
  by_blocks: bool = True,
) -> jax.Array:
  """Attends in plain matrix products: for CPUs, and what fused kernels lack.

  Attention goes by blocks of targets; if it is causal, each of them is
  multiplied with the sources up to its end only. The sum of a softmax divides
  the small result instead of the large array of weights. Logits and sums are
  float32 whatever the heads are, and keys and values are not repeated for the
  heads that share them.

  A target that sees nothing at all gets the mean of the values (of its block's
  sources), not NaN; with an extra logit it gets zeros.

  Args:
    query: [B, T, N, H], scaled.
    key: [B, S, K, H], where K divides N; head n of the queries goes with head
      n // G.
    value: [B, S, K, H].
    mask: None hides nothing.
    bias: added to the logits; None adds nothing.
    causal: whether sources after the target are hidden too.
    logit_cap: if positive, logits are capped softly to (-cap, cap).
    cap_before_bias: whether they are capped before the bias is added.
    extra_logit: the logit of one more source, whose value is zero; None for no
      such source.
    dropout: drops attention weights [B, N, T, S].
    by_blocks: whether blocks of targets may be dropped one by one, of the
      sources up to their end.

  Returns:
    [B, T, N, H].
  """
  targets, heads = query.shape[1:3]
  groups = key.shape[2]
  query = query.transpose(0, 2, 1, 3)  # So that no logit is transposed.
  key, value = (x.transpose(0, 2, 1, 3) for x in (key, value))
  query, mask, bias = (_grouped(x, groups) for x in (query, mask, bias))
  block = functools.partial(
    _attend_block,
    logit_cap=logit_cap,
    cap_before_bias=cap_before_bias,
    extra_logit=extra_logit,
    dropout=dropout,
  )
  size = max(_BLOCK_SIZE, -(-targets // _MAX_BLOCKS)) if by_blocks else targets
  if causal:
    encoded = _attend_to_past(block, query, key, value, mask, bias, size)
  elif dropout is None and size < targets and targets % size == 0:
    encoded = _attend_in_turn(block, query, key, value, mask, bias, size)
  else:
    encoded = block(query, key, value, mask, bias)
  encoded = encoded.reshape(-1, heads, targets, value.shape[-1])
  return encoded.transpose(0, 2, 1, 3)


def _attend_to_past(
  block, query, key, value, mask, bias, size: int
) -> jax.Array:
  """Attends by blocks of targets, each to the sources up to its end.

  Args:
    block: computes one: `_attend_block`.
    query: [B, K, G, T, H].
    key: [B, K, S, H].
    value: [B, K, S, H].
    mask: broadcasts to [B, K, G, T, S], as all masks and biases from here on.
    bias: likewise.
    size: of a block.

  Returns:
    [B, K, G, T, H].
  """
  targets, sources = query.shape[3], key.shape[2]
  by_blocks = size < targets
  encoded = []
  for start in range(0, targets, size):
    stop = min(start + size, targets)
    seen = min(stop, sources) if by_blocks else sources
    visible = jnp.arange(start, stop)[:, None] >= jnp.arange(seen)
    if mask is not None:
      visible &= _part(mask, start, stop, seen)
    encoded.append(
      block(
        query[:, :, :, start:stop],
        key[:, :, :seen],
        value[:, :, :seen],
        visible,
        _part(bias, start, stop, seen),
      )
    )
  return encoded[0] if len(encoded) == 1 else jnp.concatenate(encoded, axis=3)


def _attend_in_turn(
  block, query, key, value, mask, bias, size: int
) -> jax.Array:
  """Attends by blocks of targets, of which only one is in memory at a time.

  A backward pass works out the weights of each again, which takes no longer
  than to keep them.

  Args:
    block: as for `_attend_to_past`, and so are the others.
    size: of a block; T is a multiple of it.
  """
  targets = query.shape[3]

  def in_blocks(x):
    x = jnp.broadcast_to(x, (*x.shape[:3], targets, x.shape[4]))
    x = x.reshape(*x.shape[:3], -1, size, x.shape[4])
    return jnp.moveaxis(x, 3, 0)

  @jax.checkpoint
  def attend_one(parts):
    query, mask, bias = parts
    return block(query, key, value, mask, bias)

  parts = jax.tree.map(in_blocks, (query, mask, bias))
  encoded = jnp.moveaxis(jax.lax.map(attend_one, parts), 0, 3)
  return encoded.reshape(*query.shape[:4], -1)


def _attend_block(
  query,
  key,
  value,
  mask,
  bias,
  *,
  logit_cap,
  cap_before_bias,
  extra_logit,
  dropout,
) -> jax.Array:
  """Attends from some targets [B, K, G, T, H] to what they may see."""
  logits = _logits(query, key, bias, logit_cap, cap_before_bias)
  weights, total = _exponentials(logits, mask, extra_logit)
  if dropout is not None:
    batch, groups, group, *rest = weights.shape
    shape = (batch, groups * group, *rest)
    weights = dropout(weights.reshape(shape)).reshape(weights.shape)
  weights = weights.astype(value.dtype)
  encoded = _multiply('bkts,bksh->bkth', weights, value)
  return (encoded / total[..., None]).astype(value.dtype)


def _multiply(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
  """Multiplies [B, K, G, T, ...] with what the G heads share, in float32.

  Those heads and T are one dimension of the product: with a dimension for each,
  XLA copies the whole array of logits on a CPU only to lay it out anew.

  Args:
    equation: of the merged arrays.
    x: [B, K, G, T, H], or S in the place of H.
    y: [B, K, S, H].
  """
  merged = x.reshape(*x.shape[:2], -1, x.shape[-1])
  product = jnp.einsum(equation, merged, y, preferred_element_type=jnp.float32)
  return product.reshape(*x.shape[:-1], -1)


def _grouped(x: jax.Array | None, groups: int) -> jax.Array | None:
  """Turns what broadcasts to [B, N, ...] to [B, K, G, ...]."""
  if x is None:
    return None
  if x.shape[1] == 1:
    return x[:, :, None]
  return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _part(x, start: int, stop: int, seen: int) -> jax.Array | None:
  """Returns targets start..stop and sources 0..seen of a mask or bias."""
  if x is None:
    return None
  targets = slice(start, stop) if x.shape[3] > 1 else slice(None)
  return x[:, :, :, targets, : seen if x.shape[4] > 1 else None]


def _logits(query, key, bias, logit_cap, cap_before_bias) -> jax.Array:
  """Returns the logits [B, K, G, T, S]."""
  logits = _multiply('bkth,bksh->bkts', query, key)
  if bias is not None and not cap_before_bias:
    logits += bias
  if logit_cap > 0:
    logits = logit_cap * jnp.tanh(logits / logit_cap)
  if bias is not None and cap_before_bias:
    logits += bias
  return logits


def _exponentials(logits, mask, extra_logit) -> tuple[jax.Array, jax.Array]:
  """Returns a softmax's exponentials [B, K, G, T, S] and their sums."""
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


def sees_something(mask: jax.Array, *, targets: int, causal: bool) -> jax.Array:
  """Returns which targets see a source: broadcasts to [B, N, T].

  Args:
    mask: broadcasts to [B, N, T, S].
    targets: T.
    causal: whether sources after the target are hidden too.
  """
  if causal:
    past = jnp.arange(targets)[:, None] >= jnp.arange(mask.shape[3])
    mask = mask & past
  return jnp.any(mask, axis=-1)
