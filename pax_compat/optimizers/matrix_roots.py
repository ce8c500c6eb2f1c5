"""Inverse roots of symmetric positive matrices.

Shapes: D size of a matrix.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Pax's initial vector of the power iteration, so that its estimate of the
# largest eigenvalue, and with it the ridge, is the same.
_SEED = 1729
_MAX_STEPS = 100
_TOLERANCE = 1e-6
# Newton's iteration stops where its error grows by this factor.
_MAX_GROWTH = 1.2


class Root(NamedTuple):
  """An inverse root.

  Attributes:
    root: [D, D].
    error: [], the largest entry of |M - I|, where M would be the identity if
      the root were exact; or of another measure of the error.
  """

  root: jax.Array
  error: jax.Array


def inverse_root(matrix: jax.Array, order: int, epsilon) -> jax.Array:
  """Returns (matrix + epsilon)^(-1 / order), by eigenvalues.

  Args:
    matrix: [D, D], symmetric and positive up to rounding.
    order: the order of the root.
    epsilon: added to the diagonal, and the least eigenvalue.
  """
  ridge = epsilon * jnp.eye(matrix.shape[0], dtype=matrix.dtype)
  values, vectors = jnp.linalg.eigh(matrix + ridge)
  powers = jnp.maximum(values, epsilon) ** (-1.0 / order)
  return jnp.matmul(vectors * powers, vectors.T, precision='highest')


def newton_inverse_root(
  matrix: jax.Array,
  order: int,
  epsilon: float,
  *,
  size: jax.Array,
  is_relative: bool,
) -> Root:
  """Returns (matrix + ridge)^(-1 / order), by coupled Newton iterations.

  The iterations are those of Higham, Functions of Matrices, equation 7.18: with
  matrix products only, which accelerators are fast at. They stop when the error
  is small or grows, where the root before is taken.

  Args:
    matrix: [D, D], symmetric and positive up to rounding.
    order: the order of the root.
    epsilon: what is added to the diagonal.
    size: [], how many rows and columns count; the others, and those of the
      result, are zero.
    is_relative: whether epsilon is times the largest eigenvalue.
  """
  matrix, counts, ridge = _used(matrix, size, epsilon, is_relative)
  identity = jnp.diag(counts.astype(matrix.dtype))
  damped = matrix + ridge * identity
  if matrix.shape[0] == 1:
    root = jnp.where(counts, damped ** (-1.0 / order), 0)
    return Root(root, jnp.zeros([]))

  def difference(product):
    return jnp.max(jnp.abs(product - identity))

  def goes_on(state):
    step, _, _, _, error, growth = state
    wanted = (error > _TOLERANCE) & (growth < _MAX_GROWTH)
    return (step < _MAX_STEPS) & wanted

  def advance(state):
    step, product, root, _, error, _ = state
    factor = (1 + 1 / order) * identity - product / order
    product = _matmul(_power(factor, order), product)
    after = difference(product)
    return step + 1, product, _matmul(root, factor), root, after, after / error

  scale = (1 + order) / (2 * jnp.linalg.norm(damped))
  product, root = damped * scale, identity * scale ** (1 / order)
  start = (0, product, root, root, difference(product), jnp.ones([]))
  _, _, root, before, error, growth = jax.lax.while_loop(
    goes_on, advance, start
  )
  return Root(jnp.where(growth < _MAX_GROWTH, root, before), error)


def eigh_inverse_root(
  matrix: jax.Array,
  order: int,
  epsilon: float,
  *,
  size: jax.Array,
  is_relative: bool,
) -> Root:
  """Returns `newton_inverse_root`, by eigenvalues."""
  matrix, counts, ridge = _used(matrix, size, epsilon, is_relative)
  used = counts[:, None] & counts
  root = jnp.where(used, inverse_root(matrix, order, ridge), 0)
  error = jnp.where(jnp.all(jnp.isfinite(root)), 0.0, jnp.nan)
  return Root(root, error)


def _used(matrix, size, epsilon, is_relative) -> tuple[jax.Array, ...]:
  """Returns what of a matrix counts, which rows that are [D], and the ridge."""
  counts = jnp.arange(matrix.shape[0]) < size
  matrix = jnp.where(counts[:, None] & counts, matrix, 0)
  largest = largest_eigenvalue(matrix, counts) if is_relative else 1.0
  return matrix, counts, epsilon * jnp.maximum(largest, _TOLERANCE)


def largest_eigenvalue(matrix: jax.Array, counts: jax.Array) -> jax.Array:
  """Returns the largest eigenvalue [] of a matrix, by power iteration.

  Args:
    matrix: [D, D], symmetric and positive up to rounding.
    counts: [D], bool, False for rows and columns of zeros.
  """
  random = np.random.RandomState(_SEED)
  vector = random.uniform(-1.0, 1.0, matrix.shape[0]).astype(matrix.dtype)

  def goes_on(state):
    step, _, value, before = state
    return (step < _MAX_STEPS) & (jnp.abs(value - before) > _TOLERANCE)

  def advance(state):
    step, vector, value, _ = state
    unit = vector / jnp.linalg.norm(vector)
    product = jnp.matmul(matrix, unit, precision='highest')
    return step + 1, product, jnp.dot(unit, product, precision='highest'), value

  zero = jnp.zeros([], matrix.dtype)
  start = advance((0, jnp.asarray(vector) * counts, zero, zero))
  return jax.lax.while_loop(goes_on, advance, start)[2]


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
  return jnp.matmul(a, b, precision='highest')


def _power(matrix: jax.Array, exponent: int) -> jax.Array:
  """Returns a matrix to a power of 1 or more, by squaring."""
  result = None
  while exponent:
    if exponent % 2:
      result = matrix if result is None else _matmul(matrix, result)
    exponent //= 2
    matrix = _matmul(matrix, matrix) if exponent else matrix
  return result
