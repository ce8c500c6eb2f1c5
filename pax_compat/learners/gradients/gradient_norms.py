"""Norms of gradients, and scaling by factors.

A weight with n stacked layers counts as n weights: it has norms [n] and factors
[n]. Sums are float32 for gradients of any dtype.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.learners import variable_names

Arrays = dict[str, jax.Array]


def squares(
  values: Arrays,
  stacked_dims: Mapping[str, int],
  row_statistics: Mapping[str, RowStatistics] | None = None,
  lp_terms: Arrays | None = None,
) -> Arrays:
  """Returns the sum of squares of each array, by path.

  Args:
    values: the arrays; gradients are without regularization.
    stacked_dims: how many leading dimensions of each are stacked layers.
    row_statistics: those of the gradients of looked-up tables, whose
      squares are summed lookup by lookup.
    lp_terms: gradients of regularization, added before measuring.

  Returns:
    Arrays of the shape of the stacked dimensions; [] without any.
  """
  row_statistics, lp_terms = row_statistics or {}, lp_terms or {}
  result = {}
  for path, value in values.items():
    kept = stacked_dims[path]
    value, term = value.astype(jnp.float32), lp_terms.get(path)
    if path in row_statistics:
      statistics = row_statistics[path]
      total = _sum(statistics.sum_squares, kept)
      if term is not None:
        total += _sum(_cross_terms(value, term, statistics), kept)
    else:
      total = _sum(jnp.square(value if term is None else value + term), kept)
    result[path] = total
  return result


def _cross_terms(gradient, term, statistics: RowStatistics) -> jax.Array:
  """Returns the squares that regularization adds to a table's lookups.

  A row that is looked up c times has its term t divided evenly among the c
  gradients g_i. So the sum of (g_i + t / c)^2 is that of g_i^2, plus
  (2 G t + t^2) / c, with G the sum of the g_i.
  """
  count = jnp.maximum(statistics.counts_along(gradient), 1.0)
  return (2 * gradient * term + jnp.square(term)) / count


def _sum(array: jax.Array, kept_dims: int) -> jax.Array:
  return jnp.sum(array, axis=tuple(range(kept_dims, array.ndim)))


def norm(square_sums: Arrays) -> jax.Array:
  """Returns the global norm [], from the sums of squares."""
  return jnp.sqrt(sum(map(jnp.sum, square_sums.values()), jnp.zeros([])))


def limit_factor(norms: jax.Array, limit: float) -> jax.Array:
  """Returns the factors that clip norms to `limit`."""
  return jnp.minimum(1.0, limit / norms)


def scale(values: Arrays, factors: Arrays, or_zero: bool = False) -> Arrays:
  """Returns arrays times factors.

  Args:
    values: by path.
    factors: for each array one factor [], or one for each stacked layer.
    or_zero: whether a factor of zero gives zero even for values that are not
      finite.
  """

  def scale_one(value, factor):
    factor = _over_stack(factor, value)
    result = value * factor
    if or_zero:
      result = jnp.where(factor == 0, 0, result)
    return result.astype(value.dtype)

  return {
    path: scale_one(value, factors[path]) for path, value in values.items()
  }


def norm_metrics(prefix: str, square_sums: Arrays) -> dict[str, jax.Array]:
  """Returns the norm [] of each array, as `<prefix>/<name of the weight>`.

  The norm of the second of stacked layers is `<prefix>/<name>/1`.
  """
  result = {}
  for path, total in square_sums.items():
    name = f'{prefix}/{variable_names.full_name(path)}'
    norms = jnp.sqrt(total)
    for index in np.ndindex(norms.shape):
      result['/'.join((name, *map(str, index)))] = norms[index]
  return result


def _over_stack(factor: jax.Array, value: jax.Array) -> jax.Array:
  """Returns factors reshaped to broadcast from the leading dimensions."""
  return jnp.reshape(factor, factor.shape + (1,) * (value.ndim - factor.ndim))
