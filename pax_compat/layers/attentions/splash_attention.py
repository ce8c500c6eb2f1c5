"""Splash attention: a fused kernel for TPUs, from JAX's Pallas library.

Logits stay on the chip: they are computed by blocks, in the forward pass and
again in the backward pass, and blocks that a causal mask hides are skipped. The
compiler cannot partition the kernel, so each device runs it on its examples and
heads.

Shapes: B batch, T time, N heads of queries, K heads of keys and values, H dims
of a head.
"""

import math

import jax
import jax.numpy as jnp
from etils import epy
from jax.sharding import PartitionSpec

from pax_compat.layer_core import flop_scopes, sharding
from pax_compat.layer_core.sharding import SplitDimsMapping
from pax_compat.layers.attentions.attention_masks import SegmentMask
from pax_compat.layers.attentions.attention_ops import (
  AttentionInputs,
  AttentionOptions,
)

with epy.lazy_imports():  # Other devices never need them.
  from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
  )

# Lanes of a TPU's vector registers: head dims are a multiple of it.
_LANES = 128
# Targets and sources of a block; the first that divides T.
_BLOCKS = (512, 256, 128)
# With few blocks of sources, one kernel computes all gradients. It writes the
# queries' once for each block.
_MAX_BLOCKS_OF_ONE_BACKWARD_KERNEL = 4


def unsupported(inputs: AttentionInputs, options: AttentionOptions) -> str:
  """Returns what splash attention does not support; '' if it can be used.

  Args:
    inputs: heads, mask and bias.
    options: how attention weights are computed.
  """
  query, key, value, mask, bias, _ = inputs
  length, dims = query.shape[1], query.shape[-1]
  obstacles = {
    'a bias of the logits': bias is not None,
    'an extra logit': options.extra_logit is not None,
    'dropout of attention weights': options.dropout is not None,
    'a mask that is not given by segment ids': (
      mask is not None and not isinstance(mask, SegmentMask)
    ),
    f'heads of {dims} dims, not a multiple of {_LANES}': (
      dims % _LANES or value.shape[-1] % _LANES
    ),
    f'{length} positions, not a multiple of {_BLOCKS[-1]}': (
      length % _BLOCKS[-1]
    ),
    'sources that are not the targets': key.shape[1] != length,
    'several dtypes': not query.dtype == key.dtype == value.dtype,
  }
  for what, is_there in obstacles.items():
    if is_there:
      return what
  return _unsupported_split(query, key, options.split)


def attend(
  inputs: AttentionInputs, options: AttentionOptions, *, interpret: bool = False
) -> jax.Array:
  """Attends with splash attention, which must support the arguments.

  Args:
    inputs: heads, mask and bias.
    options: how attention weights are computed.
    interpret: whether the kernel is emulated, slowly, on any device.

  Returns:
    [B, T, N, H].
  """
  query, key, value, mask, _, _ = inputs

  def each(query, key, value, mask):
    heads_first = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
    kernel = _kernel(inputs, options, query.shape[2], interpret)
    ids = None
    if mask is not None:
      ids = splash_attention_kernel.SegmentIds(
        *(x.astype(jnp.int32) for x in mask)
      )
    encoded = jax.vmap(kernel)(*heads_first, ids)
    return encoded.transpose(0, 2, 1, 3)

  mesh = jax.sharding.get_abstract_mesh()
  if not mesh.empty and mesh.size > 1:
    batch, heads = _split_axes(options.split)
    of_keys = heads if key.shape[2] > 1 else None
    each = jax.shard_map(
      each,
      in_specs=(
        PartitionSpec(batch, None, heads),
        PartitionSpec(batch, None, of_keys),
        PartitionSpec(batch, None, of_keys),
        None if mask is None else PartitionSpec(batch),
      ),
      out_specs=PartitionSpec(batch, None, heads),
      check_vma=False,
    )
  blocks = query.shape[1] // _block(query.shape[1])
  if inputs.causal:
    computed = blocks * (blocks + 1) // 2
    each = flop_scopes.useful_part(each, computed, blocks**2)
  return each(query, key, value, mask)


def _block(length: int) -> int:
  return next(size for size in _BLOCKS if length % size == 0)


def _kernel(
  inputs: AttentionInputs,
  options: AttentionOptions,
  heads: int,
  interpret: bool,
):
  """Returns the kernel of one example, for `heads` heads of a device."""
  length = inputs.query.shape[1]
  size = _block(length)
  one_backward = length // size <= _MAX_BLOCKS_OF_ONE_BACKWARD_KERNEL
  of_queries = None if one_backward else size
  mask = splash_attention_mask.FullMask((length, length))
  if inputs.causal:
    mask = splash_attention_mask.CausalMask((length, length))
  return splash_attention_kernel.make_splash_mha(
    splash_attention_mask.MultiHeadMask([mask] * heads),
    block_sizes=splash_attention_kernel.BlockSizes(
      block_q=size,
      block_kv=size,
      block_q_dkv=size,
      block_kv_dkv=size,
      block_q_dq=of_queries,
      block_kv_dq=of_queries,
      use_fused_bwd_kernel=one_backward,
    ),
    attn_logits_soft_cap=options.logit_cap if options.logit_cap > 0 else None,
    head_shards=1,
    q_seq_shards=1,
    interpret=interpret,
  )


def _split_axes(split: SplitDimsMapping) -> tuple[tuple[str, ...], ...]:
  """Returns the mesh axes of the batch and of the heads."""
  mesh = jax.sharding.get_abstract_mesh()
  if split is None:
    batch = [a for a in sharding.BATCH_AXES if a in mesh.axis_names]
    return tuple(batch), ()
  batch, _, heads, _ = map(sharding.axes_of, split)
  return batch, heads


def _unsupported_split(
  query: jax.Array, key: jax.Array, split: SplitDimsMapping
) -> str:
  """Returns what of the sharding is not supported; '' if all is."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return ''
  if split is not None:
    _, time, _, dims = map(sharding.axes_of, split)
    if any(mesh.shape[axis] > 1 for axis in (*time, *dims)):
      return 'positions or dims of a head that are split over devices'
  batch, heads = (
    math.prod(mesh.shape[axis] for axis in axes) for axes in _split_axes(split)
  )
  rows, heads_of_keys = query.shape[0], key.shape[2]
  if rows % batch:
    return f'{rows} examples that are split over {batch} devices'
  if query.shape[2] % heads or (heads_of_keys > 1 and heads_of_keys % heads):
    return f'{heads_of_keys} heads that are split over {heads} devices'
  return ''
