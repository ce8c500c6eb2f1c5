"""Regularization: L1, L2 and decoupled weight decay."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.optimizers import BaseOptimizer

Arrays = dict[str, jax.Array]


def lp_terms(
  optimizer: BaseOptimizer,
  weights: Arrays,
  weight_metas: Mapping[str, base_layer.WeightHParams],
  row_statistics: Mapping[str, RowStatistics],
) -> Arrays:
  """Returns the gradients of L1 and L2 regularization, by path.

  They are c * w for L2 of weight c, c * sign(w) for L1, and their sum for both.
  Of a table with row statistics, only looked-up rows are regularized, whether
  or not it skips regularization, as in Lingvo.

  Args:
    optimizer: has the regularization fields.
    weights: its weights by path.
    weight_metas: their metadata.
    row_statistics: those of the gradients of looked-up tables.
  """
  l1, l2 = optimizer.l1_regularizer_weight, optimizer.l2_regularizer_weight
  if not l1 and not l2:
    return {}
  terms = {}
  for path, weight in weights.items():
    meta = weight_metas[path]
    rank = weight.ndim - len(meta.repeat_prefix)
    if _is_exempt(meta) and path not in row_statistics:
      continue
    if optimizer.skip_lp_1d_vectors and rank <= 1:
      continue
    term = l2 * weight if l2 else 0.0
    if l1:
      term += l1 * jnp.sign(weight)
    if path in row_statistics:
      term = term * (row_statistics[path].counts_along(weight) > 0)
    terms[path] = term
  return terms


def add_terms(gradients: Arrays, terms: Arrays) -> Arrays:
  """Returns gradients plus terms, where a path has one."""
  return {
    path: (g + terms[path]).astype(g.dtype) if path in terms else g
    for path, g in gradients.items()
  }


def add_weight_decay(
  updates: Arrays,
  weights: Arrays,
  weight_metas: Mapping[str, base_layer.WeightHParams],
  rate: jax.Array | float,
) -> Arrays:
  """Returns updates of weights with decoupled decay: u - rate * w.

  Args:
    updates: updates to add to the weights, by path.
    weights: by path.
    weight_metas: their metadata; weights that skip regularization do not decay.
    rate: [], the learning rate times the decay.
  """
  return {
    path: u
    if _is_exempt(weight_metas[path])
    else (u - rate * weights[path]).astype(u.dtype)
    for path, u in updates.items()
  }


def _is_exempt(meta: base_layer.WeightHParams) -> bool:
  return base_layer.SKIP_LP_REGULARIZATION in meta.collections
