"""Pax's DistributedShampoo: Shampoo in blocks, with grafting.

Shapes: N number of blocks of a weight; D_i size of dimension i of a block.
"""

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from pax_compat import errors
from pax_compat.config import instance_field
from pax_compat.layer_core import sharding
from pax_compat.optimizers import matrix_roots
from pax_compat.optimizers.base import BaseOptimizer, counted
from pax_compat.optimizers.weight_blocks import WeightBlocks

_TINY = 1e-16
MATRICES = ('statistics', 'roots')


class GraftingType(enum.IntEnum):
  """The method whose step size DistributedShampoo takes.

  Those with NORMALIZED divide the gradient of a weight by its norm before.
  SQRT_N is the sign of the gradient.
  """

  SGD = 1
  ADAGRAD = 2
  RMSPROP = 3
  RMSPROP_NORMALIZED = 4
  SQRT_N = 5
  ADAGRAD_NORMALIZED = 6


_ADAGRAD = (GraftingType.ADAGRAD, GraftingType.ADAGRAD_NORMALIZED)
_RMSPROP = (GraftingType.RMSPROP, GraftingType.RMSPROP_NORMALIZED)
_NORMALIZED = (
  GraftingType.RMSPROP_NORMALIZED,
  GraftingType.ADAGRAD_NORMALIZED,
)


class DistributedShampooState(NamedTuple):
  """State of DistributedShampoo.

  All fields except the count are trees like the weights. The last three have a
  tuple for each weight, with an item per dimension of its blocks; it is empty
  where a weight is not preconditioned.

  Attributes:
    count: [], number of steps.
    sum_squares: sums or averages of squared gradients, for grafting; arrays [1]
      where there are none.
    graft_momentum: momentum of the grafted method's steps.
    momentum: momentum of the preconditioned steps.
    statistics: matrices [N, D_i, D_i] of past gradients.
    roots: inverse roots of these matrices.
    errors: errors [N] of the last roots that were computed.
  """

  count: jax.Array
  sum_squares: Any
  graft_momentum: Any
  momentum: Any
  statistics: Any
  roots: Any
  errors: Any


class DistributedShampoo(BaseOptimizer):
  """Shampoo in blocks (https://arxiv.org/abs/2002.09018), as Pax's.

  A weight is split into blocks. Each dimension i of a block has a matrix S_i,
  an average of G G^T over past steps, where G [D_i, ...] is the gradient with
  that dimension first. The direction is the gradient times S_i^(-1 / 2n) along
  each of its n dimensions, scaled to the norm of the step of another method,
  which is also made until `start_preconditioning_step`. The roots are computed
  by iterations of matrix products, for blocks of one size together, and the
  blocks are divided among the devices of the mesh.

  Steps are those of Pax with optax-shampoo 0.0.6.

  Attributes:
    block_size: the largest dimension of a block; 0 for no blocks.
    beta1: decay of momentum.
    beta2: decay of averages of squares; 1 for sums.
    diagonal_epsilon: added to the root of the squares in grafting.
    matrix_epsilon: added to the diagonal of a matrix before its root.
    weight_decay: this times a weight is part of its step.
    start_preconditioning_step: the first step that is preconditioned.
    preconditioning_compute_steps: roots are computed every this many steps,
      from the first one on.
    statistics_compute_steps: matrices are updated every this many steps.
    graft_type: the method that gives the step size, a `GraftingType`.
    batch_axis_name: no effect: the axes of the mesh are known.
    mesh_axis_names: names of the axes that `tensor_split_dims_mapping` counts;
      only for ShardedDistributedShampoo.
    num_devices_for_pjit: no effect: matrices are not padded to it.
    nesterov: whether momentum is Nesterov's.
    exponent_override: if above 0, p of the power -1 / p, instead of 2 n.
    inverse_failure_threshold: a root with an error of this or more is not used;
      the one before is.
    moving_average_for_momentum: whether momentum is an average, not a sum.
    skip_preconditioning_dim_size_gt: weights with a dimension above this are
      not preconditioned.
    clip_by_scaled_gradient_norm: if set, the largest root mean square of a step
      of RMSPROP.
    best_effort_shape_interpretation: whether small dimensions are merged.
    tensor_split_dims_mapping: how matrices [N, D, D] are sharded: for each
      dimension the name of a mesh axis, or its index in `mesh_axis_names`,
      where -1, 0 and None are for none; only for ShardedDistributedShampoo.
    tensor_split_dims_mapping_for_inverse_pth_root: the same while roots are
      computed.
    best_effort_memory_usage_reduction: not supported: False.
    relative_matrix_epsilon: whether `matrix_epsilon` is times the largest
      eigenvalue of the matrix.
    cholesky: not supported: False.
    qr_based_root: not supported: False.
    merge_small_dims_block_size: the largest merged dimension.
    lobpcg_topk_precondition: not supported: 0.
    lobpcg_max_iter: not supported: 0.
    skip_preconditioning_rank_lt: weights of a lower rank than this are not
      preconditioned.
    summarize_training_metrics: whether the errors of roots are reported.
    decoupled_weight_decay_from_momentum: whether weight decay is added after
      momentum, times the learning rate.
    decoupled_learning_rate_from_momentum: whether the learning rate is applied
      after momentum.
    eigh: whether roots are computed by eigenvalues.
    compression_rank: not supported: 0.
    frequent_directions: not supported: False.
    average_grad: not supported: False.
    reuse_preconditioner: not supported: False.

  Raises:
    UserError: a field that is not supported is set, or is out of its range.
  """

  block_size: int = 1024
  beta1: float = 0.9
  beta2: float = 0.999
  diagonal_epsilon: float = 1e-16
  matrix_epsilon: float = 1e-6
  weight_decay: float = 0.0
  start_preconditioning_step: int = 101
  preconditioning_compute_steps: int = 100
  statistics_compute_steps: int = 1
  graft_type: Any = GraftingType.ADAGRAD
  batch_axis_name: str = 'batch'
  mesh_axis_names: Sequence[str] | None = None
  num_devices_for_pjit: int | None = None
  nesterov: bool = True
  exponent_override: int = 0
  inverse_failure_threshold: float = 0.1
  moving_average_for_momentum: bool = False
  skip_preconditioning_dim_size_gt: int = 4096
  clip_by_scaled_gradient_norm: float | None = None
  best_effort_shape_interpretation: bool = True
  tensor_split_dims_mapping: Sequence[Any] = instance_field(lambda: [-1, 1, -1])
  tensor_split_dims_mapping_for_inverse_pth_root: Sequence[Any] = (
    instance_field(lambda: [-1, 1, -1])
  )
  best_effort_memory_usage_reduction: bool = False
  relative_matrix_epsilon: bool = True
  cholesky: bool = False
  qr_based_root: bool = False
  merge_small_dims_block_size: int = 4096
  lobpcg_topk_precondition: int = 0
  lobpcg_max_iter: int = 0
  skip_preconditioning_rank_lt: int = 1
  summarize_training_metrics: bool = True
  decoupled_weight_decay_from_momentum: bool = True
  decoupled_learning_rate_from_momentum: bool = False
  eigh: bool = False
  compression_rank: int = 0
  frequent_directions: bool = False
  average_grad: bool = False
  reuse_preconditioner: bool = False

  # Whether a step uses the roots from before it, which are not updated then.
  _uses_older_roots = False

  def __post_init__(self):
    super().__post_init__()
    other = 'optax-shampoo 0.0.6 does not have it either; leave it'
    self.refuse(
      best_effort_memory_usage_reduction='matrices and momentum are float32',
      lobpcg_topk_precondition='set eigh for roots of ill-conditioned matrices',
      lobpcg_max_iter='set eigh for roots of ill-conditioned matrices',
      cholesky=other,
      qr_based_root=other,
      compression_rank=other,
      frequent_directions=other,
      average_grad=other,
      reuse_preconditioner=other,
    )
    for name in ('preconditioning_compute_steps', 'statistics_compute_steps'):
      value = getattr(self, name)
      self.check(value >= 1, f'{name} is {value}; expected 1 or more')
    for name in ('block_size', 'exponent_override'):
      value = getattr(self, name)
      self.check(value >= 0, f'{name} is {value}; expected 0 or more')
    kinds = list(map(int, GraftingType))
    self.check(
      self.graft_type in kinds,
      f'graft_type is {self.graft_type!r}; expected a GraftingType, of {kinds}',
    )

  @classmethod
  def HParamsImageClassification(cls):  # noqa: N802 (Pax's name)
    """Returns Pax's config for image classification."""
    return cls.config(
      beta2=0.95,
      block_size=128,
      weight_decay=1e-4,
      preconditioning_compute_steps=1,
      graft_type=GraftingType.SGD,
    )

  @classmethod
  def HParamsLanguageModeling(cls):  # noqa: N802 (Pax's name)
    """Returns Pax's config for language models."""
    return cls.config(
      block_size=1536,
      clip_gradient_norm_to_value=5.0,
      matrix_epsilon=1e-8,
      graft_type=GraftingType.RMSPROP_NORMALIZED,
      nesterov=False,
      start_preconditioning_step=51,
      preconditioning_compute_steps=50,
      moving_average_for_momentum=True,
    )

  def own_spec(self, name, leaf_shape, mesh):
    del leaf_shape, mesh
    return PartitionSpec() if name in (*MATRICES, 'errors') else None

  def metrics(self, state):
    if not self.summarize_training_metrics:
      return {}
    found = jax.tree_util.tree_leaves_with_path(
      state, is_leaf=lambda x: isinstance(x, DistributedShampooState)
    )
    metrics: dict[str, jax.Array] = {}
    for path, own in jax.tree_util.tree_leaves_with_path(
      [x.errors for _, x in found if isinstance(x, DistributedShampooState)]
    ):
      *keys, dim = path[1:]
      name = '/'.join(str(key.key) for key in keys)
      metrics[f'learning/root_errors/{name}_{dim.idx}'] = jnp.max(own)
    return metrics

  def grad_transformation(self):
    rate = self.learning_rate_fn()

    def update(gradients, state, params=None):
      return self._update(gradients, state, params, rate(state.count))

    return counted(optax.GradientTransformation(self._init, update))

  def weight_blocks(self, shape: Sequence[int]) -> WeightBlocks | None:
    """Returns the blocks of a weight; None if it is not preconditioned."""
    if len(shape) < self.skip_preconditioning_rank_lt or any(
      n > self.skip_preconditioning_dim_size_gt for n in shape
    ):
      return None
    merges = self.best_effort_shape_interpretation
    merged_size = self.merge_small_dims_block_size if merges else 0
    return WeightBlocks(shape, self.block_size, merged_size)

  def _init(self, weights):
    def matrices(weight, scale):
      blocks = self.weight_blocks(weight.shape)
      return tuple(
        jnp.broadcast_to(scale * jnp.eye(n), [blocks.num_blocks, n, n])
        for n in (blocks.block_shape if blocks else ())
      )

    def failures(weight):
      return tuple(x[:, 0, 0] for x in matrices(weight, 0.0))

    has_squares = self.graft_type in (*_ADAGRAD, *_RMSPROP)

    def zeros(is_kept):
      return jax.tree.map(
        lambda w: jnp.zeros(w.shape if is_kept else [1]), weights
      )

    return DistributedShampooState(
      count=jnp.zeros([], jnp.int32),
      sum_squares=zeros(has_squares),
      graft_momentum=zeros(True),
      momentum=zeros(True),
      statistics=jax.tree.map(
        lambda w: matrices(w, self.matrix_epsilon), weights
      ),
      roots=jax.tree.map(lambda w: matrices(w, 1.0), weights),
      errors=jax.tree.map(failures, weights),
    )

  def _update(self, gradients, state, weights, rate):
    """Returns the updates, which the learning rate is part of, and a state."""
    gradients, structure = jax.tree.flatten(gradients)
    gradients = [g.astype(jnp.float32) for g in gradients]
    count, *trees = state
    squares, graft_momentum, momentum, statistics, roots, failures = map(
      structure.flatten_up_to, trees
    )
    if self.weight_decay and weights is None:
      raise errors.UserError(
        f'{type(self).__name__}: weight_decay needs the weights; pass them'
      )
    if weights is None:
      weights = gradients  # No step reads them.
    else:
      weights = structure.flatten_up_to(weights)
    blocks = [self.weight_blocks(g.shape) for g in gradients]
    statistics = _every(
      self.statistics_compute_steps,
      count,
      lambda old: list(map(self._next_statistics, gradients, blocks, old)),
      statistics,
    )
    old_roots = roots
    roots, failures = _every(
      self.preconditioning_compute_steps,
      count,
      lambda old: self._next_roots(blocks, statistics, old[0]),
      (roots, failures),
    )
    steps = [
      self._step(*of_weight, count=count, rate=rate)
      for of_weight in zip(
        gradients,
        weights,
        blocks,
        squares,
        graft_momentum,
        momentum,
        old_roots if self._uses_older_roots else roots,
        strict=True,
      )
    ]
    updates, *others = [
      structure.unflatten(column) for column in zip(*steps, strict=True)
    ] or [structure.unflatten([])] * 4
    return updates, DistributedShampooState(
      optax.safe_increment(count),
      *others,
      *map(structure.unflatten, (statistics, roots, failures)),
    )

  def _next_statistics(self, gradient, blocks, matrices) -> tuple:
    """Returns the next matrices of a weight."""
    if blocks is None:
      return matrices
    parts = blocks.split(gradient)
    kept, added = self._shares

    def next_matrix(dim, matrix):
      others = [i for i in range(parts.ndim - 1) if i != dim]
      square = jax.vmap(
        lambda x: jnp.tensordot(x, x, (others, others), precision='highest')
      )(parts)
      return kept * matrix + added * square

    return tuple(next_matrix(i, x) for i, x in enumerate(matrices))

  @property
  def _shares(self) -> tuple[float, float]:
    """The shares of the old and the new in averages of squares."""
    return self.beta2, 1.0 if self.beta2 == 1.0 else 1.0 - self.beta2

  def _next_roots(self, blocks, statistics, roots) -> tuple[list, list]:
    """Returns roots and their errors; a failed root is the one before.

    Matrices of one size and order of all weights are computed together.
    """
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, one in enumerate(blocks):
      for dim, size in enumerate(one.block_shape if one else ()):
        order = self.exponent_override or 2 * len(one.block_shape)
        groups.setdefault((size, order), []).append((i, dim))
    new = [list(x) for x in roots]
    failures: list[list] = [[None] * len(x) for x in roots]
    compute = (
      matrix_roots.eigh_inverse_root
      if self.eigh
      else matrix_roots.newton_inverse_root
    )
    for (_, order), members in groups.items():
      made = jax.vmap(
        lambda matrix, size, order=order: compute(
          matrix,
          order,
          self.matrix_epsilon,
          size=size,
          is_relative=self.relative_matrix_epsilon,
        )
      )(
        *self._divided(
          jnp.concatenate([statistics[i][d] for i, d in members]),
          np.concatenate([blocks[i].sizes(d) for i, d in members]),
        )
      )
      old = jnp.concatenate([roots[i][d] for i, d in members])
      error, root = made.error[: len(old)], made.root[: len(old)]
      failed = ~(error < self.inverse_failure_threshold)
      kept = jnp.where(failed[:, None, None], old, root)
      start = 0
      for i, dim in members:
        own = slice(start, start + blocks[i].num_blocks)
        new[i][dim], failures[i][dim] = kept[own], error[own]
        start = own.stop
    return list(map(tuple, new)), list(map(tuple, failures))

  def _divided(self, matrices: jax.Array, sizes: np.ndarray):
    """Returns matrices [N, D, D] divided among the devices, and sizes [N].

    Both are padded by identities, until the devices divide their number.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
      return matrices, sizes
    spec = self._divided_spec(mesh)
    first, *others = [
      math.prod(mesh.shape[axis] for axis in sharding.axes_of(entry))
      for entry in spec
    ]
    dim = matrices.shape[-1]
    padding = -len(sizes) % first
    identities = jnp.broadcast_to(jnp.eye(dim), [padding, dim, dim])
    matrices = jnp.concatenate([matrices, identities])
    entries = [
      entry if dim % parts == 0 else None
      for entry, parts in zip(spec[1:], others, strict=True)
    ]
    return (
      sharding.shard(matrices, [spec[0], *entries], where='statistics'),
      np.concatenate([sizes, np.full([padding], dim, sizes.dtype)]),
    )

  def _divided_spec(self, mesh) -> list[Any]:
    """Returns the mesh axes [3] of matrices while roots are computed."""
    return [mesh.axis_names, None, None]

  def _grafted(self, gradient, squares) -> tuple[jax.Array, jax.Array]:
    """Returns the step of the grafted method, and the next squares."""
    kind = self.graft_type
    if kind == GraftingType.SGD:
      return gradient, squares
    if kind == GraftingType.SQRT_N:
      return jnp.sign(gradient), squares
    if kind in _NORMALIZED:
      gradient = gradient / (jnp.linalg.norm(gradient) + _TINY)
    kept, added = (1.0, 1.0) if kind in _ADAGRAD else self._shares
    squares = kept * squares + added * jnp.square(gradient)
    step = gradient / (jnp.sqrt(squares) + self.diagonal_epsilon)
    limit = self.clip_by_scaled_gradient_norm
    if limit and kind in _RMSPROP:
      rms = jnp.sqrt(jnp.mean(jnp.square(step)))
      step = step / jnp.maximum(1.0, rms / limit)
    return step, squares

  def _step(
    self,
    gradient,
    weight,
    blocks,
    squares,
    graft_momentum,
    momentum,
    roots,
    *,
    count,
    rate,
  ) -> tuple[jax.Array, ...]:
    """Returns the update of a weight, its squares and both momenta."""
    decoupled_rate = self.decoupled_learning_rate_from_momentum
    plain, squares = self._grafted(gradient, squares)
    plain = plain if decoupled_rate else plain * rate
    direction = plain
    if blocks is not None:
      direction = _preconditioned(gradient, blocks, roots)
    direction = direction * (
      jnp.linalg.norm(plain) / (jnp.linalg.norm(direction) + _TINY)
    )
    decay = self.weight_decay
    decoupled_decay = self.decoupled_weight_decay_from_momentum
    if decay and not decoupled_decay:
      plain, direction = plain + decay * weight, direction + decay * weight
    share = 1.0 - self.beta1 if self.moving_average_for_momentum else 1.0
    graft_momentum = self.beta1 * graft_momentum + share * plain
    momentum = self.beta1 * momentum + share * direction
    is_started = count >= self.start_preconditioning_step
    update = jnp.where(is_started, momentum, graft_momentum)
    if self.nesterov:
      now = jnp.where(is_started, direction, plain)
      update = share * now + self.beta1 * update
    if decay and decoupled_decay:
      update = update + rate * decay * weight
    update = -update * (rate if decoupled_rate else 1.0)
    return update, squares, graft_momentum, momentum


def _preconditioned(gradient, blocks: WeightBlocks, roots) -> jax.Array:
  """Returns a gradient times the roots of each of its dimensions."""

  def product(part, *matrices):
    # Each product moves the first dimension to the end.
    for matrix in matrices:
      part = jnp.tensordot(part, matrix, (0, 0), precision='highest')
    return part

  return blocks.join(jax.vmap(product)(blocks.split(gradient), *roots))


def _every(interval: int, count: jax.Array, update, old: Any) -> Any:
  """Returns `update(old)` every `interval` steps, else `old`."""
  if interval == 1:
    return update(old)
  return jax.lax.cond(count % interval == 0, update, lambda same: same, old)
