"""What TensorFlow's sparse gradient of a looked-up table tells a learner.

TensorFlow gives a table's gradient as one row for each lookup, rows of the same
token side by side, not summed. Lingvo's learner sees it so: it measures the
gradient's norm over those rows, and regularises only rows that were looked up.
JAX's gradient is the dense sum, from which neither can be had. So the lookup
takes a probe, a pair of zeros whose *gradient* is defined to be these facts:
how often each row was looked up, and the sum of squares of the rows' gradients.

Shapes: V rows, D dims of a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RowFacts(NamedTuple):
  """Facts about a table's gradient.

  Attributes:
    counts: [V], how often each row was looked up.
    sum_squares: [], sum of squares over all lookups, duplicates not summed.
  """

  counts: jax.Array
  sum_squares: jax.Array

  def counts_along(self, table: jax.Array) -> jax.Array:
    """Returns the counts with as many dimensions as `table` [V, ...] has."""
    missing = table.ndim - self.counts.ndim
    return self.counts.reshape(self.counts.shape + (1,) * missing)


def no_facts(num_rows: int) -> RowFacts:
  """Returns the zeros that a lookup takes as its probe."""
  return RowFacts(jnp.zeros([num_rows]), jnp.zeros([]))


@jax.custom_vjp
def lookup_with_row_facts(
  table: jax.Array, ids: jax.Array, probe: RowFacts
) -> jax.Array:
  """Looks up rows; the probe's gradient is the facts about the table's.

  Args:
    table: [V, D].
    ids: [...], int.
    probe: `no_facts(V)`.

  Returns:
    [..., D].
  """
  del probe
  return table[ids]


def _forward(table, ids, probe):
  return lookup_with_row_facts(table, ids, probe), (table, ids)


def _backward(residuals, gradient):
  table, ids = residuals
  facts = RowFacts(
    counts=jnp.zeros(table.shape[0]).at[ids].add(1.0),
    sum_squares=jnp.sum(jnp.square(gradient.astype(jnp.float32))),
  )
  return jnp.zeros_like(table).at[ids].add(gradient), None, facts


lookup_with_row_facts.defvjp(_forward, _backward)
