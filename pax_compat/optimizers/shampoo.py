"""Shampoo: gradients preconditioned by matrices of past gradients.

Shapes: D_i size of dimension i of a weight.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pax_compat import errors
from pax_compat.optimizers.base import BaseOptimizer
from pax_compat.optimizers.matrix_roots import inverse_root

_TINY = 1e-30


class ShampooState(NamedTuple):
  """State of Shampoo.

  All fields except the count are trees like the weights, or tuples of such
  trees. The last three have arrays [1] for a weight, or a dimension of it, that
  is not preconditioned.

  Attributes:
    count: [], number of steps.
    sum_squares: sum of squared gradients.
    momentum: momentum of the gradients over the roots of these sums.
    statistics: for each dimension i a tree of matrices [D_i, D_i].
    roots: for each dimension the inverse roots of these matrices.
    preconditioned: momentum of the gradients times the roots.
  """

  count: jax.Array
  sum_squares: Any
  momentum: Any
  statistics: tuple[Any, ...]
  roots: tuple[Any, ...]
  preconditioned: Any


class Shampoo(BaseOptimizer):
  """Shampoo, https://arxiv.org/abs/1802.09568, with the step size of Adagrad.

  Each dimension i of a weight has a matrix S_i, the sum of G G^T over all
  steps, where G [D_i, ...] is the gradient with that dimension first. The
  direction is the gradient times S_i^(-1 / 2n) along each of its n dimensions,
  scaled to the norm of the direction that Adagrad takes; both with momentum.

  It starts as Adagrad, and changes gradually to this direction from
  `start_step` to twice that. Weights of rank 0 and 1, and those with a
  dimension above `max_dim`, stay with Adagrad. The inverse roots are computed
  in float32, by eigenvalues: an `epsilon` far below 1e-6 of the largest
  eigenvalue has no effect.

  Attributes:
    momentum: decay of the momentum of directions; 0 for none.
    initial_accumulator_value: initial value of Adagrad's sums of squares.
    second_moment_decay: decay d of a matrix, d * S + (1 - d) * G G^T; 1 for the
      sum S + G G^T.
    statistics_interval_steps: matrices are updated every this many steps, from
      the first one on.
    root_interval_steps: roots are computed after every this many steps. The
      direction is zero before the first time, so this should not be above
      `start_step`.
    start_step: the step where the change from Adagrad starts.
    epsilon: added to the diagonal of a matrix, and the least eigenvalue.
    max_dim: the largest dimension of a weight that is preconditioned.
    max_matrix_dim: a dimension above this, or of size 1, has no matrix; the
      others of the weight do.

  Raises:
    UserError: an interval is below 1, or a decay is not from 0 to 1.
  """

  momentum: float = 0.9
  initial_accumulator_value: float = 0.0
  second_moment_decay: float = 1.0
  statistics_interval_steps: int = 1
  root_interval_steps: int = 100
  start_step: int = 1000
  epsilon: float = 1e-6
  max_dim: int = 8192
  max_matrix_dim: int = 4096

  def __post_init__(self):
    super().__post_init__()
    for name in ('statistics_interval_steps', 'root_interval_steps'):
      value = getattr(self, name)
      self.check(value >= 1, f'{name} is {value}; expected 1 or more')
    for name in ('momentum', 'second_moment_decay'):
      value = getattr(self, name)
      self.check(0 <= value <= 1, f'{name} is {value}; expected 0 to 1')

  def check_supports_no_op_steps(self):
    raise errors.UserError(
      f'{type(self).__name__}: it does not support no-op steps, which tasks'
      ' make while another one is trained: its intervals count its own steps;'
      ' expected another optimizer'
    )

  def reduced_dim(self, name, weight_shape, leaf_shape):
    if name in ('statistics', 'roots'):
      return None
    return super().reduced_dim(name, weight_shape, leaf_shape)

  def direction(self):
    return optax.GradientTransformation(self._init, self._update)

  def matrix_dims(self, shape: Sequence[int]) -> list[int]:
    """Returns the dimensions of a weight that have matrices."""
    if len(shape) < 2 or max(shape) > self.max_dim:
      return []
    return [i for i, n in enumerate(shape) if 1 < n <= self.max_matrix_dim]

  def is_preconditioned(self, shape: Sequence[int]) -> bool:
    """Whether a weight of some shape is preconditioned.

    If all its dimensions are too large for matrices, its direction is the
    gradient.
    """
    return len(shape) > 1 and max(shape) <= self.max_dim and max(shape) > 1

  def _init(self, weights):
    def matrix(weight, dim):
      has_it = dim in self.matrix_dims(weight.shape)
      return jnp.zeros([weight.shape[dim]] * 2 if has_it else [1])

    rank = max((w.ndim for w in jax.tree.leaves(weights)), default=0)
    matrices = tuple(
      jax.tree.map(lambda w, dim=dim: matrix(w, dim), weights)
      for dim in range(rank)
    )

    def mean(weight, kept):
      return jnp.zeros(weight.shape if kept and self.momentum else [1])

    return ShampooState(
      count=jnp.zeros([], jnp.int32),
      sum_squares=jax.tree.map(
        lambda w: jnp.full(w.shape, self.initial_accumulator_value, float),
        weights,
      ),
      momentum=jax.tree.map(lambda w: mean(w, True), weights),
      statistics=matrices,
      roots=jax.tree.map(jnp.copy, matrices),
      preconditioned=jax.tree.map(
        lambda w: mean(w, self.is_preconditioned(w.shape)), weights
      ),
    )

  def _update(self, gradients, state, params=None):
    del params
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    sum_squares = jax.tree.map(
      lambda s, g: s + jnp.square(g), state.sum_squares, gradients
    )
    adagrad = jax.tree.map(
      lambda g, s: g * jax.lax.rsqrt(s + _TINY), gradients, sum_squares
    )
    plain, momentum = self._averaged(adagrad, state.momentum)
    products = jax.tree.map(self._product, gradients, *state.roots)
    preconditioned, means = self._averaged(products, state.preconditioned)
    updates = jax.tree.map(
      lambda a, p: self._interpolated(a, p, state.count), plain, preconditioned
    )
    next_count = optax.safe_increment(state.count)
    statistics = _update_if(
      state.count % self.statistics_interval_steps == 0,
      lambda old: _by_dim(self._next_statistics, gradients, old),
      state.statistics,
    )
    roots = _update_if(
      next_count % self.root_interval_steps == 0,
      lambda _: _by_dim(self._root, gradients, statistics),
      state.roots,
    )
    return updates, ShampooState(
      next_count, sum_squares, momentum, statistics, roots, means
    )

  def _averaged(self, values, means) -> tuple[Any, Any]:
    """Returns values with momentum, and the next momentum."""
    if not self.momentum:
      return values, means

    def averaged(value, mean):
      if mean.shape != value.shape:
        return mean
      return self.momentum * mean + (1.0 - self.momentum) * value

    means = jax.tree.map(averaged, values, means)
    seen = jax.tree.map(
      lambda v, m: m if m.shape == v.shape else v, values, means
    )
    return seen, means

  def _product(self, gradient, *roots) -> jax.Array:
    """Returns a gradient times the roots of its dimensions."""
    for dim in self.matrix_dims(gradient.shape):
      along = jnp.tensordot(
        gradient, roots[dim], axes=(dim, 0), precision='highest'
      )
      gradient = jnp.moveaxis(along, -1, dim)
    return gradient

  def _interpolated(self, adagrad, preconditioned, count) -> jax.Array:
    """Interpolates between Adagrad's and the preconditioned direction."""
    if not self.is_preconditioned(adagrad.shape):
      return adagrad
    norm = jnp.linalg.norm(preconditioned)
    wanted = jnp.maximum(jnp.linalg.norm(adagrad), _TINY)
    scale = wanted / jnp.maximum(norm, _TINY)
    preconditioned *= jnp.where(norm > 0, scale, 1.0)
    share = 1.0
    if self.start_step > 0:
      share = jnp.clip((count - self.start_step) / self.start_step, 0.0, 1.0)
    return share * preconditioned + (1.0 - share) * adagrad

  def _next_statistics(self, gradient, matrix, dim: int) -> jax.Array:
    """Returns the next matrix of a dimension."""
    if dim not in self.matrix_dims(gradient.shape):
      return matrix
    others = [i for i in range(gradient.ndim) if i != dim]
    square = jnp.tensordot(
      gradient, gradient, axes=(others, others), precision='highest'
    )
    decay = self.second_moment_decay
    if decay == 1:
      return matrix + square
    return decay * matrix + (1.0 - decay) * square

  def _root(self, gradient, matrix, dim: int) -> jax.Array:
    """Returns the inverse root of the matrix of a dimension."""
    dims = self.matrix_dims(gradient.shape)
    if dim not in dims:
      return matrix
    return inverse_root(matrix, 2 * len(dims), self.epsilon)


def _by_dim(
  make: Callable[..., jax.Array], gradients: Any, trees: tuple[Any, ...]
) -> tuple[Any, ...]:
  """Returns trees of `make(gradient, leaf, dim)` for each dimension."""
  return tuple(
    jax.tree.map(lambda g, x, dim=dim: make(g, x, dim), gradients, tree)
    for dim, tree in enumerate(trees)
  )


def _update_if(
  condition: jax.Array, update: Callable[[Any], Any], old: Any
) -> Any:
  """Returns `update(old)` if the condition is true, else `old`."""
  return jax.lax.cond(condition, update, lambda unchanged: unchanged, old)
