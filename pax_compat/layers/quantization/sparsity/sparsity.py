"""Masks of sparse weights: True for weights that are kept.

Pruned are those with the smallest scores. Of equal scores the first is kept.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pax_compat import errors
from pax_compat.layers.quantization.sparsity.sparsity_hparams import (
  SparsityHParams,
  SparsityOrder,
  SparsityScore,
  SparsityType,
)

SPARSITY_MASK_SUFFIX = '_sparsity_mask'


def apply_sparsity(
  inputs: jax.Array,
  mask: jax.Array,
  channelwise_dim: int | None = None,
  pruned_value: jax.Array | float | None = None,
) -> jax.Array:
  """Returns weights with 0 where they are pruned.

  Args:
    inputs: the weights.
    mask: their mask.
    channelwise_dim: the dimension whose pruned channels are removed, not set to
      0; only with a mask that is known while the function is traced.
    pruned_value: a value instead of 0.
  """
  if channelwise_dim is not None:
    kept = jnp.any(mask, axis=_others(inputs, channelwise_dim))
    return jnp.take(inputs, jnp.nonzero(kept)[0], axis=channelwise_dim)
  pruned = jnp.asarray(0.0 if pruned_value is None else pruned_value)
  return jnp.where(mask, inputs, pruned.astype(inputs.dtype))


def new_mask(
  score: jax.Array,
  mask: jax.Array,
  step: jax.Array,
  hparams: SparsityHParams,
) -> jax.Array:
  """Returns the mask of a weight.

  Args:
    score: the scores.
    mask: the mask before.
    step: the step [], for a rate that changes.
    hparams: the settings.
  """
  kind, rate = hparams.sparsity_type, hparams.prune_rate
  if kind == SparsityType.UNSTRUCTURED:
    if hparams.polynomial_decay_schedule is not None:
      rate = hparams.polynomial_decay_schedule.rate(step)
    if rate is None:
      return mask
    return get_sparsity_mask_unstructured(score, mask, rate)
  if rate is None:
    return mask
  if kind == SparsityType.CHANNELWISE_PRUNING:
    dim = hparams.channelwise_pruning_dim
    return get_sparsity_mask_channelwise(score, rate, dim)
  return get_sparsity_mask(
    score,
    *rate,
    order=hparams.order,
    block_size=hparams.block_size,
    offset=hparams.weight_params.offset,
  )


def get_sparsity_mask(
  inputs: jax.Array,
  n_sparsity: int = 0,
  m_sparsity: int = 0,
  order: str = 'R',
  block_size: int = 0,
  offset: int = 0,
) -> jax.Array:
  """Returns a mask that keeps N of each group of M weights.

  Groups lie along one dimension. Where its size is not a multiple of a group's,
  they run on from row to row, of the columns with the order 'C'.

  >>> get_sparsity_mask(jnp.array([[1, 3, -4, 2]]), 2, 4).astype(int)
  Array([[0, 1, 1, 0]], dtype=int32)

  Args:
    inputs: the weights, or scores.
    n_sparsity: N.
    m_sparsity: M.
    order: see `SparsityOrder`.
    block_size: see `SparsityHParams`.
    offset: see `WeightSparsityParams`.

  Raises:
    UserError: the sizes do not fit.
  """
  if order not in list(SparsityOrder) or offset < 0:
    raise errors.UserError(
      f'get_sparsity_mask: order is {str(order)!r} and offset {offset};'
      ' expected C or R, and an offset that is not negative'
    )
  if not 0 <= n_sparsity <= m_sparsity:
    raise errors.UserError(
      f'get_sparsity_mask: {n_sparsity} of {m_sparsity} are kept; expected N:M'
      ' with N at most M'
    )
  if order == SparsityOrder.C:
    _check_two_dimensions(inputs)
    inputs = jnp.swapaxes(inputs, -1, -2)
  scores = jnp.abs(inputs)
  if block_size > 1:
    _check_size('block_size', inputs.shape[-1], block_size)
    scores = scores.reshape(*scores.shape[:-1], -1, block_size).sum(-1)
  kept = largest_in_groups(scores, n_sparsity, m_sparsity, max(offset, 1))
  if block_size > 1:
    kept = jnp.repeat(kept, block_size, axis=-1)
  return jnp.swapaxes(kept, -1, -2) if order == SparsityOrder.C else kept


def largest_in_groups(
  scores: jax.Array, count: int, size: int, distance: int = 1
) -> jax.Array:
  """Returns which scores are among the largest of their group.

  Args:
    scores: the scores.
    count: how many of a group are.
    size: size of a group.
    distance: distance of its values in the last dimension.

  Raises:
    UserError: the scores are not a number of groups.
  """
  lead = scores.shape[:-1]
  if scores.shape[-1] % (size * distance):
    _check_size('M times offset', scores.size, size * distance)
    lead = ()
  groups = scores.reshape(*lead, -1, size, distance)
  # Comparisons within a group: sorting small groups takes longer.
  other, this = groups[..., :, None, :], groups[..., None, :, :]
  is_earlier = jnp.arange(size)[:, None] < jnp.arange(size)
  is_before = (other > this) | ((other == this) & is_earlier[..., None])
  return (is_before.sum(-3) < count).reshape(scores.shape)


def get_sparsity_mask_channelwise(
  inputs: jax.Array, prune_rate: float, channel_dim: int = -1
) -> jax.Array:
  """Returns a mask that keeps the channels with the largest sums of scores.

  Args:
    inputs: the scores.
    prune_rate: the share of pruned channels; one is always kept.
    channel_dim: their dimension.
  """
  sums = inputs.sum(axis=_others(inputs, channel_dim))
  count = max(1, round(sums.size * (1 - prune_rate)))
  kept = jnp.zeros(sums.shape, bool).at[jax.lax.top_k(sums, count)[1]].set(True)
  kept = jnp.expand_dims(kept, _others(inputs, channel_dim))
  return jnp.broadcast_to(kept, inputs.shape)


def get_sparsity_mask_unstructured(
  inputs: jax.Array, mask: jax.Array | None, prune_rate: jax.Array | float
) -> jax.Array:
  """Returns a mask that prunes a share of all weights.

  Args:
    inputs: the weights, or scores.
    mask: the mask before, whose pruned weights stay pruned; or None.
    prune_rate: percentage of pruned weights, those before included.
  """
  scores = jnp.abs(inputs)
  if mask is not None:
    scores = apply_sparsity(scores, mask)
  kept = scores > jnp.percentile(scores, prune_rate)
  # The smallest is not above the percentile 0, which prunes none.
  kept |= jnp.asarray(prune_rate) <= 0
  return kept if mask is None else kept & mask


def compute_score(
  weights: jax.Array,
  score_func: SparsityScore = SparsityScore.MAGNITUDE,
  inputs: jax.Array | None = None,
) -> jax.Array:
  """Returns the scores of a weight.

  Args:
    weights: the weight.
    score_func: see `SparsityScore`.
    inputs: the inputs of its product, for ACTIVATION_WEIGHTED.
  """
  if score_func == SparsityScore.ACTIVATION_WEIGHTED:
    return score_activation_weighted(weights, inputs)
  return score_weight_magnitude(weights)


def score_weight_magnitude(weight: jax.Array) -> jax.Array:
  """Returns the absolute values."""
  return jnp.abs(weight)


def score_activation_weighted(
  weight: jax.Array, inputs: jax.Array | None
) -> jax.Array:
  """Returns absolute weights times the sums of their absolute inputs.

  Args:
    weight: a matrix [I, O].
    inputs: [..., I].

  Raises:
    UserError: the weight is not such a matrix, or inputs are missing.
  """
  if (
    inputs is None or weight.ndim != 2 or inputs.shape[-1:] != weight.shape[:1]
  ):
    shapes = list(weight.shape), inputs if inputs is None else inputs.shape
    raise errors.UserError(
      'SparsityScore.ACTIVATION_WEIGHTED: the weight has the shape'
      f' {shapes[0]}, and inputs {shapes[1]}; expected [I, O] and [..., I]'
    )
  sums = jnp.abs(inputs).sum(axis=_others(inputs, -1))
  return sums[:, None] * jnp.abs(weight)


def _others(x: jax.Array, dim: int) -> Sequence[int]:
  """Returns all dimensions of an array but one."""
  return tuple(i for i in range(x.ndim) if i != dim % x.ndim)


def _check_two_dimensions(inputs: jax.Array):
  if inputs.ndim < 2:
    raise errors.UserError(
      f"order 'C' needs two dimensions, got the shape {list(inputs.shape)}"
    )


def _check_size(name: str, size: int, divisor: int):
  if size % divisor:
    raise errors.UserError(
      f'get_sparsity_mask: {size} values; expected a multiple of {name},'
      f' {divisor}'
    )
