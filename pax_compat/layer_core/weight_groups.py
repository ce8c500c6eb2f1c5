"""Groups that weights belong to, and trees of their metadata."""

from typing import Any

import flax.struct
import jax

from pax_compat.layer_core.weight_hparams import (
  SKIP_LP_REGULARIZATION,
  BoxedParam,
  WeightHParams,
  is_boxed,
  unbox,
)


class WeightHParamsCollection:
  """Names of groups with a meaning, for `WeightHParams.collections`.

  REQUIRES_MEAN_SYNC and REQUIRES_SUM_SYNC mark weights for Pax's pmap. Here a
  step computes with whole arrays, so that they are synchronous by themselves. A
  step replaces weights of OVERWRITE_WITH_GRADIENT by their gradients.
  """

  SKIP_LP_REGULARIZATION = SKIP_LP_REGULARIZATION
  NON_TRAINABLE = '_lingvo_jax_non_trainable'
  REQUIRES_MEAN_SYNC = '_requires_mean_sync'
  REQUIRES_SUM_SYNC = '_requires_sum_sync'
  DISALLOW_BFLOAT16_CONVERSION = '_disallow_bfloat16_conversion'
  OVERWRITE_WITH_GRADIENT = '_overwrite_with_gradient'


def _has(group: str, weight: WeightHParams) -> bool:
  return group in (weight.collections or ())


def var_not_trainable(var_hparams: WeightHParams) -> bool:
  """Whether the learner leaves a weight as it is."""
  return _has(WeightHParamsCollection.NON_TRAINABLE, var_hparams)


def var_requires_mean_sync(var_hparams: WeightHParams) -> bool:
  """Whether a weight is marked REQUIRES_MEAN_SYNC."""
  return _has(WeightHParamsCollection.REQUIRES_MEAN_SYNC, var_hparams)


def var_requires_sum_sync(var_hparams: WeightHParams) -> bool:
  """Whether a weight is marked REQUIRES_SUM_SYNC."""
  return _has(WeightHParamsCollection.REQUIRES_SUM_SYNC, var_hparams)


def var_disallow_bfloat16_conversion(var_hparams: WeightHParams) -> bool:
  """Whether a weight stays in its dtype when the layer computes in bfloat16."""
  return _has(WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION, var_hparams)


def var_skip_lp_regularization(var_params: WeightHParams) -> bool:
  """Whether a weight is exempt from L1/L2 regularisation."""
  return _has(WeightHParamsCollection.SKIP_LP_REGULARIZATION, var_params)


def var_overwrite_with_gradient(var_hparams: WeightHParams) -> bool:
  """Whether a weight's gradient is its next value."""
  return _has(WeightHParamsCollection.OVERWRITE_WITH_GRADIENT, var_hparams)


class BoxedPartitionSpec(flax.struct.PyTreeNode):
  """A PartitionSpec as a tree without leaves."""

  meta: Any = flax.struct.field(pytree_node=False)


def maybe_unbox_value(tree: Any) -> Any:
  """Returns the tree with boxed weights replaced by their values."""
  return unbox(tree)


def unbox_meta(tree: Any) -> Any:
  """Returns the tree with weights replaced by their `WeightHParams`.

  The dimensions of stacked layers are in `repeat_prefix` only, not in `shape`;
  of these layers both are lists, as in Pax.
  """

  def meta(x):
    if isinstance(x, BoxedParam):
      return _without_prefix(x.meta)
    return WeightHParams(shape=tuple(x.shape), dtype=x.dtype)

  return jax.tree.map(meta, tree, is_leaf=is_boxed)


def _without_prefix(weight: WeightHParams) -> WeightHParams:
  count = len(weight.repeat_prefix)
  if not count:
    return weight
  split = weight.tensor_split_dims_mapping
  prefix = tuple(split[:count]) if split else (None,) * count
  return weight.replace(
    shape=list(weight.shape[count:]),
    repeat_prefix=list(weight.repeat_prefix),
    tensor_split_dims_mapping=tuple(split[count:]) if split else None,
    repeat_prefix_split_dims_mapping=tuple(
      -1 if axes is None else axes for axes in prefix
    ),
  )
