"""Weights that are drawn towards zero: L1, L2 and decoupled decay."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pax_compat import base_layer
from pax_compat.layer_core.row_gradients import RowFacts
from pax_compat.optimizers import BaseOptimizer

Arrays = dict[str, jax.Array]


def lp_terms(
  optimizer: BaseOptimizer,
  weights: Arrays,
  weight_metas: Mapping[str, base_layer.WeightHParams],
  row_facts: Mapping[str, RowFacts],
) -> Arrays:
  """Returns what L1 or L2 regularisation adds to gradients, by path.

  With L2 of weight c that is c * w, with L1 c * sign(w). Of a table with facts
  about its rows, only rows that were looked up are regularised.

  Args:
    optimizer: whose fields say how.
    weights: its weights by path.
    weight_metas: what they are.
    row_facts: facts about the gradients of looked-up tables.
  """
  l1, l2 = optimizer.l1_regularizer_weight, optimizer.l2_regularizer_weight
  if not l1 and not l2:
    return {}
  terms = {}
  for path, weight in weights.items():
    meta = weight_metas[path]
    rank = weight.ndim - len(meta.repeat_prefix)
    if _is_exempt(meta) or (optimizer.skip_lp_1d_vectors and rank <= 1):
      continue
    term = l2 * weight if l2 else l1 * jnp.sign(weight)
    if path in row_facts:
      term = term * (row_facts[path].counts_along(weight) > 0)
    terms[path] = term
  return terms


def added(gradients: Arrays, terms: Arrays) -> Arrays:
  """Returns gradients with the terms added where there are some."""
  return {
    path: (g + terms[path]).astype(g.dtype) if path in terms else g
    for path, g in gradients.items()
  }


def decayed(
  updates: Arrays,
  weights: Arrays,
  weight_metas: Mapping[str, base_layer.WeightHParams],
  rate: jax.Array | float,
) -> Arrays:
  """Returns updates of weights with decoupled decay: u - rate * w.

  Args:
    updates: what will be added to the weights, by path.
    weights: by path.
    weight_metas: what they are; those that skip regularisation do not decay.
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
