"""An optimizer with its regularization as one optax transformation.

The learner does not use it: it applies regularization itself, see
`learners.gradients.regularization`. It is for code that calls
`get_grad_transformation`, as that written for Pax does.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from pax_compat import errors
from pax_compat.layer_core.weight_groups import var_skip_lp_regularization
from pax_compat.layer_core.weight_hparams import WeightHParams


def transformation(
  optimizer: Any, weight_metas: Any, include_ema: bool
) -> optax.GradientTransformation:
  """Returns the transformation from gradients to updates; see `BaseOptimizer`.

  Args:
    optimizer: has the fields of a `BaseOptimizer`.
    weight_metas: the tree of `WeightHParams`, of which those that skip
      regularization are exempt; None for none.
    include_ema: whether an average of weights is kept.

  Raises:
    UserError: that is so, and the optimizer has an `ema_decay`.
  """
  if include_ema and optimizer.ema_decay:
    raise errors.UserError(
      f'{type(optimizer).__name__}.ema_decay is {optimizer.ema_decay}, but the'
      ' average of weights is kept by the learner; call'
      ' get_grad_transformation(..., include_ema=False)'
    )
  l1, l2 = optimizer.l1_regularizer_weight, optimizer.l2_regularizer_weight
  decay = optimizer.decoupled_weight_decay
  steps = [optimizer.whole_transformation()]
  if l1 or l2:
    exempts_vectors = optimizer.skip_lp_1d_vectors
    steps.insert(0, _lp_terms(l1 or 0, l2 or 0, weight_metas, exempts_vectors))
  if decay:
    steps.append(_decay(optimizer, decay, weight_metas))
  return steps[0] if len(steps) == 1 else optax.chain(*steps)


def _lp_terms(l1, l2, weight_metas, exempts_vectors):
  def add(updates, params):
    def term(update, weight):
      if exempts_vectors and weight.ndim <= 1:
        return update
      return update + l2 * weight + l1 * jnp.sign(weight)

    return _unless_exempt(term, weight_metas, updates, params)

  return optax.stateless(add)


def _decay(optimizer, decay, weight_metas):
  rate = optimizer.learning_rate_fn()

  def init(params):
    del params
    return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

  def update(updates, state, params=None):
    count = state.count
    now = decay * rate(count) * optimizer.updates_weights(count)
    updates = _unless_exempt(
      lambda u, weight: u - (now * weight).astype(u.dtype),
      weight_metas,
      updates,
      params,
    )
    return updates, state._replace(count=optax.safe_increment(count))

  return optax.GradientTransformation(init, update)


def _unless_exempt(
  change: Callable, weight_metas: Any, updates: Any, params: Any
) -> Any:
  """Returns updates, changed where a weight does not skip regularization."""
  if params is None:
    raise errors.UserError(
      'regularization needs the weights: pass them to `update` as its third'
      ' argument'
    )
  if weight_metas is None:
    return jax.tree.map(change, updates, params)

  def unless(meta, update, weight):
    skips = var_skip_lp_regularization(meta)
    return update if skips else change(update, weight)

  return jax.tree.map(
    unless,
    weight_metas,
    updates,
    params,
    is_leaf=lambda x: isinstance(x, WeightHParams),
  )
