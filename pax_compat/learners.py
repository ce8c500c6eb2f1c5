"""Learners: from gradients to the next weights, with what is said about both.

A tree here is the `params` collection: nested dicts of arrays, unboxed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from pax_compat import base_layer, errors, optimizers
from pax_compat import config as config_lib
from pax_compat.config import Config, sub_config_field
from pax_compat.layers.row_gradients import RowFacts

NONFINITE_CHOICES = ('skip', 'zero')


class Learner(config_lib.Configurable):
  """Optimizes one loss.

  Gradients are regularised, measured, scaled down to a norm, and given to the
  optimizer, in that order.

  Attributes:
    optimizer: the optimizer, with its learning rate.
    loss_name: which of the model's metrics is the loss.
    grad_norm_to_clip_to_zero: if positive, gradients whose global norm is as
      large or larger count as zero in that step (the optimizer steps on).
    nonfinite_gradients: what a step does whose gradients are not all finite.
      'skip' leaves weights and optimizer as they were; 'zero' gives the
      optimizer zeros, as Lingvo does.
    var_norm_summary: whether the global norm of the weights is reported.

  Raises:
    UserError: `nonfinite_gradients` is neither of its two values.
  """

  optimizer: Config = sub_config_field(optimizers.Adam)
  loss_name: str = 'loss'
  grad_norm_to_clip_to_zero: float = 0.0
  nonfinite_gradients: str = 'skip'
  var_norm_summary: bool = True

  def __post_init__(self):
    if self.nonfinite_gradients not in NONFINITE_CHOICES:
      raise errors.UserError(
        f'Learner.nonfinite_gradients is {self.nonfinite_gradients!r}; it is'
        f' one of {", ".join(NONFINITE_CHOICES)}'
      )
    self._optimizer = self.optimizer.Instantiate()
    self._transformation = self._optimizer.grad_transformation()
    self._learning_rate = self._optimizer.learning_rate_fn()

  def init(self, params: Any) -> Any:
    """Returns the optimizer's state for the weights `params`."""
    return self._transformation.init(params)

  def update(
    self,
    params: Any,
    state: Any,
    gradients: Any,
    *,
    weight_metas: dict[str, base_layer.WeightHParams],
    row_facts: dict[str, RowFacts],
  ) -> tuple[Any, Any, dict[str, jax.Array]]:
    """Makes one step.

    Args:
      params: the weights.
      state: the optimizer's state.
      gradients: a tree like `params`.
      weight_metas: what each weight is, by its path (see `paths`).
      row_facts: facts about the gradients of looked-up tables, by path.

    Returns:
      The new weights, the new state, and scalars that describe the step.
    """
    if self._optimizer.l2_regularizer_weight is not None:
      gradients = self._add_l2(params, gradients, weight_metas, row_facts)
    norm = jnp.sqrt(self._sum_squares(params, gradients, row_facts))
    finite = jnp.isfinite(norm)
    scale = jnp.where(finite, self._scale(norm), 0.0)
    gradients = jax.tree.map(
      # A gradient that is not finite is not made zero by a factor of zero.
      lambda g: jnp.where(scale == 0.0, 0.0, g * scale).astype(g.dtype),
      gradients,
    )
    updates, new_state = self._transformation.update(gradients, state, params)
    new_params = optax.apply_updates(params, updates)
    if self.nonfinite_gradients == 'skip':
      new_params, new_state = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old),
        (new_params, new_state),
        (params, state),
      )
    metrics = {
      # The optimizer's own count, which does not move where it skips.
      'learning_rate': self._learning_rate(state[-1].count),
      'grad_norm/all': norm,
      'grad_scale_all': scale,
      'has_nan_or_inf': 1.0 - finite.astype(jnp.float32),
    }
    if self.var_norm_summary:
      metrics['var_norm/all'] = optax.tree.norm(params)
    return new_params, new_state, metrics

  def _scale(self, norm: jax.Array) -> jax.Array:
    scale = jnp.ones([])
    clip = self._optimizer.clip_gradient_norm_to_value
    if clip > 0:
      scale = jnp.minimum(scale, clip / norm)
    if self.grad_norm_to_clip_to_zero > 0:
      scale = jnp.where(norm < self.grad_norm_to_clip_to_zero, scale, 0.0)
    return scale

  def _add_l2(self, params, gradients, weight_metas, row_facts):
    weight = self._optimizer.l2_regularizer_weight

    def add(path, value, gradient):
      name = path_name(path)
      collections = weight_metas[name].collections
      if base_layer.SKIP_LP_REGULARIZATION in collections:
        return gradient
      if name in row_facts:
        value = value * (row_facts[name].counts > 0)[:, None]
      return gradient + weight * value

    return jax.tree_util.tree_map_with_path(add, params, gradients)

  def _sum_squares(self, params, gradients, row_facts) -> jax.Array:
    """Returns the sum of squares of all gradients, tables lookup by lookup."""

    def squares(path, value, gradient):
      facts = row_facts.get(path_name(path))
      if facts is None:
        return jnp.sum(jnp.square(gradient.astype(jnp.float32)))
      return self._table_squares(value, gradient, facts)

    return sum(
      jax.tree.leaves(
        jax.tree_util.tree_map_with_path(squares, params, gradients)
      )
    )

  def _table_squares(self, table, gradient, facts: RowFacts) -> jax.Array:
    """Returns the sum of squares over lookups, regularisation included.

    A row that was looked up c times has its regularisation w * row spread
    evenly over the c gradients g_i. So the sum of (g_i + w * row / c)^2 is that
    of g_i^2, plus (2 G w row + (w row)^2) / c, with G the sum of the g_i.
    """
    l2 = self._optimizer.l2_regularizer_weight
    if l2 is None:
      return facts.sum_squares
    looked_up = (facts.counts > 0)[:, None]
    added = l2 * table * looked_up
    summed = gradient - added
    count = jnp.maximum(facts.counts, 1.0)[:, None]
    extra = jnp.sum((2 * summed * added + jnp.square(added)) / count)
    return facts.sum_squares + extra


def path_name(path) -> str:
  """Returns a tree path as text: keys joined by slashes."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def by_path(tree: Any, is_leaf=None) -> dict[str, Any]:
  """Returns the leaves of a tree by their paths, as `path_name` writes them."""
  items, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
  return {path_name(path): leaf for path, leaf in items}
