"""Wrappers of optimizers that translated tasks need in addition to Pax's.

Translated configs contain them, so they do not import Lingvo.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pax_compat import optimizers
from pax_compat.config import REQUIRED, Config, instance_field
from pax_compat.learners import path_name
from pax_compat.learners.state import state_leaves
from pax_compat.optimizers.base import counted, increment_count

# Values of `OnLookedUpRows.leaves_alone`.
OTHER_ROWS, TABLES = 'other rows', 'tables'
# Beginning of `ByVariables.sparse_updates` where it is not known.
UNKNOWN = 'unknown'


class ByVariables(optimizers.BaseOptimizer):
  """An optimizer that needs weights in the shapes of Lingvo's variables.

  Attributes:
    variable_names: Lingvo's names of the weights, by path.
    sparse_updates: how TensorFlow updates tables whose gradients are sparse: ''
      as if they were dense, else as of `OnLookedUpRows.leaves_alone`, or
      'unknown: ' and why.
    uses_step: whether updates depend on Lingvo's global step.
    slot_names: the names of slots in Lingvo's checkpoints, as suffixes of the
      variables' names; None if they are unknown.
    other_names: likewise, the names of its other variables.
  """

  variable_names: Mapping[str, str] = instance_field(dict)
  sparse_updates: str = ''
  uses_step: bool = True
  slot_names: Mapping[str, str] | None = None
  other_names: Mapping[str, str] | None = None


class _Wrapper(optimizers.BaseOptimizer):
  """Changes gradients, and passes them to another optimizer.

  The fields of `BaseOptimizer`, learning rate included, are set on the wrapper.

  Attributes:
    optimizer_tpl: the wrapped optimizer.
  """

  optimizer_tpl: Config = REQUIRED

  def __post_init__(self):
    super().__post_init__()
    self._optimizer = (
      self.optimizer_tpl.clone()
      .set(learning_rate=self.learning_rate, lr_schedule=self.lr_schedule)
      .Instantiate()
    )

  def check_supports_no_op_steps(self):
    self._optimizer.check_supports_no_op_steps()

  def learning_rate_fn(self):
    return self._optimizer.learning_rate_fn()

  def updates_weights(self, count):
    return self._optimizer.updates_weights(count)

  def reduced_dim(self, name, weight_shape, leaf_shape):
    return self._optimizer.reduced_dim(name, weight_shape, leaf_shape)


class GroupClipped(_Wrapper):
  """Clips the gradients of some weights by their global norm.

  Attributes:
    paths: of the weights, such as `lm/rnns/cell/wm`.
    norm: the largest norm of their gradients together; positive.

  Raises:
    UserError: `norm` is not positive.
  """

  paths: Sequence[str] = REQUIRED
  norm: float = REQUIRED

  def __post_init__(self):
    super().__post_init__()
    self.check(self.norm > 0, f'norm is {self.norm}; it must be positive')

  def grad_transformation(self):
    clip = optax.masked(optax.clip_by_global_norm(self.norm), self._is_clipped)
    return counted(optax.chain(clip, self._optimizer.grad_transformation()))

  def no_op_step(self, state):
    (clipped, own), count = state
    return increment_count(((clipped, self._optimizer.no_op_step(own)), count))

  def _is_clipped(self, weights):
    """Returns a tree of bools like the weights."""
    return jax.tree_util.tree_map_with_path(
      lambda path, _: path_name(path) in self.paths, weights
    )


class OnLookedUpRows(_Wrapper):
  """Leaves alone rows of tables, as TensorFlow's sparse updates do.

  It concerns the tables with row statistics, whose gradients are sparse in
  TensorFlow; see `pax_compat.layer_core.row_gradients`. Other weights are
  updated as without it.

  Attributes:
    leaves_alone: 'other rows' for the rows that a batch does not look up: they
      and their state do not change; 'tables' for all rows; anything else says
      why it is unknown, and such tables are an error.
  """

  leaves_alone: str = OTHER_ROWS

  def grad_transformation(self):
    inner = optax.with_extra_args_support(self._optimizer.grad_transformation())

    def update(gradients, state, params=None, *, row_counts=None, **others):
      updates, new = inner.update(gradients, state, params, **others)
      if not row_counts:
        return updates, new
      self.check(
        self.leaves_alone in (OTHER_ROWS, TABLES),
        f'how it updates the tables {", ".join(row_counts)} is'
        f' {self.leaves_alone}',
      )
      zeros = jax.tree.map(jnp.zeros_like, updates)
      return (
        self._on_rows(updates, zeros, gradients, row_counts),
        self._on_rows(new, state, gradients, row_counts),
      )

    return optax.GradientTransformationExtraArgs(inner.init, update)

  def no_op_step(self, state):
    return self._optimizer.no_op_step(state)

  def _on_rows(self, new: Any, old: Any, weights: Any, counts) -> Any:
    """Returns a tree with old values where a row is left alone."""
    owners = state_leaves.owners(new, weights)
    leaves, structure = jax.tree.flatten(new)
    return jax.tree.unflatten(
      structure,
      [
        x if owner is None else self._kept(x, before, counts.get(owner.path))
        for x, before, owner in zip(
          leaves, jax.tree.leaves(old), owners, strict=True
        )
      ],
    )

  def _kept(self, new, old, counts) -> jax.Array:
    """Returns the values of one weight; its rows are the first dimension."""
    if counts is None:
      return new
    if self.leaves_alone == TABLES:
      return old
    counts = counts.reshape(counts.shape + (1,) * (new.ndim - counts.ndim))
    return jnp.where(counts > 0, new, old)


class InOtherShapes(_Wrapper):
  """Passes some weights to another optimizer in Lingvo's shapes.

  So the optimizer's dependence on shapes is as in Lingvo.

  Attributes:
    steps: by path of these weights, the steps to Lingvo's shape: ('reshape',
      shape) or ('transpose', axes).
  """

  steps: Mapping[str, Sequence[tuple[str, Sequence[int]]]] = REQUIRED

  def grad_transformation(self):
    inner = optax.with_extra_args_support(self._optimizer.grad_transformation())

    def init(weights):
      return inner.init(self._to_lingvo(weights))

    def update(gradients, state, params=None, **others):
      updates, state = inner.update(
        self._to_lingvo(gradients), state, self._to_lingvo(params), **others
      )
      return self._from_lingvo(updates, params), state

    return optax.GradientTransformationExtraArgs(init, update)

  def no_op_step(self, state):
    return self._optimizer.no_op_step(state)

  def _to_lingvo(self, tree: Any) -> Any:
    """Returns a tree like the weights, in Lingvo's shapes."""

    def changed(path, x):
      for _, step, argument in self._shapes(path, x):
        x = getattr(jnp, step)(x, argument)
      return x

    return jax.tree_util.tree_map_with_path(changed, tree)

  def _from_lingvo(self, tree: Any, weights: Any) -> Any:
    """Returns a tree in Lingvo's shapes, in those of the weights."""

    def changed(path, x, weight):
      for shape, step, argument in reversed(self._shapes(path, weight)):
        if step == 'transpose':
          x = jnp.transpose(x, np.argsort(argument))
        else:
          x = jnp.reshape(x, shape)
      return x

    return jax.tree_util.tree_map_with_path(changed, tree, weights)

  def _shapes(self, path, weight):
    """Returns (shape before, name, argument) of each step of a weight."""
    found, shape = [], tuple(weight.shape)
    for step, argument in self.steps.get(path_name(path), ()):
      found.append((shape, step, tuple(argument)))
      if step == 'transpose':
        shape = tuple(shape[axis] for axis in argument)
      else:
        shape = tuple(argument)
    return found
