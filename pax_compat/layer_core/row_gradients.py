"""Statistics of TensorFlow's sparse gradients, for learners as in Lingvo.

TensorFlow's gradient of a table has one row for each lookup; rows of the same
token are not summed. Lingvo's learner measures the gradient's norm over those
rows, and regularises only rows that were looked up. JAX's gradient is the dense
sum, which lacks both. So the lookup takes a probe, a pair of zeros whose
*gradient* is defined to be these statistics: how often each row was looked up,
and the sum of squares of the rows' gradients.

Shapes: V rows, D dims of a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RowStatistics(NamedTuple):
  """Statistics of a table's gradient.

  Attributes:
    counts: [V], number of lookups of each row.
    sum_squares: [], sum of squares over all lookups, without summing the rows
      of equal ids first.
  """

  counts: jax.Array
  sum_squares: jax.Array

  def counts_along(self, table: jax.Array) -> jax.Array:
    """Returns the counts reshaped to broadcast against `table` [V, ...]."""
    missing = table.ndim - self.counts.ndim
    return self.counts.reshape(self.counts.shape + (1,) * missing)


def no_statistics(num_rows: int) -> RowStatistics:
  """Returns the probe of a lookup: zeros."""
  return RowStatistics(jnp.zeros([num_rows]), jnp.zeros([]))


@jax.custom_vjp
def lookup_with_row_statistics(
  table: jax.Array, ids: jax.Array, probe: RowStatistics
) -> jax.Array:
  """Looks up rows; the probe's gradient is the statistics of the table's.

  Args:
    table: [V, D].
    ids: [...], int.
    probe: `no_statistics(V)`.

  Returns:
    [..., D].
  """
  del probe
  return table[ids]


def _forward(table, ids, probe):
  return lookup_with_row_statistics(table, ids, probe), (table, ids)


def _backward(residuals, gradient):
  table, ids = residuals
  statistics = RowStatistics(
    counts=jnp.zeros(table.shape[0]).at[ids].add(1.0),
    sum_squares=jnp.sum(jnp.square(gradient.astype(jnp.float32))),
  )
  return jnp.zeros_like(table).at[ids].add(gradient), None, statistics


lookup_with_row_statistics.defvjp(_forward, _backward)
