"""The parts of a step as methods, with Pax's names and arguments.

    grad_tx = learner.get_grad_tx(metas)
    state = grad_tx.init(variables)
    updates, state = learner.update_states(gradients, state, variables, metas)
    variables = learner.apply_gradient(variables, updates, metas)

Trees are those of weights, or of variables by collection; then variables of
other collections than `params` have updates of zero. The state is a
`LearnerState`. The trainer does not call these methods: `Learner.update` makes
its steps.
"""

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from pax_compat import base_layer, errors
from pax_compat.learners import branches
from pax_compat.learners import step as step_lib
from pax_compat.learners.gradients import gradient_norms, gradient_scaling
from pax_compat.learners.gradients.update_scale import initial_scale
from pax_compat.learners.step import Arrays
from pax_compat.learners.variable_names import by_path, pick, replace_leaves


class StepMethods:
  """The methods of a learner; see the module."""

  def get_grad_tx(
    self, var_weight_hparams: Any
  ) -> optax.GradientTransformation:
    """Returns the transformation of gradients, without clipping.

    Args:
      var_weight_hparams: the `WeightHParams` of the variables.

    Raises:
      UserError: the expression of an optimizer matches the name of no weight,
        or two of them match the same weight.
    """
    self.losses_of(_metas(var_weight_hparams))  # Checks the expressions.

    def init(params: Any) -> Any:
      variables = params if base_layer.PARAMS in params else None
      return self.init(
        _weights(params),
        weight_metas=_metas(var_weight_hparams),
        variables=variables,
      )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
      if params is None:
        raise errors.UserError(
          'get_grad_tx: `update` needs the variables as its third argument'
        )
      step = self._step_of(updates, state, var_weight_hparams)
      ones = dict.fromkeys(step.gradients, jnp.ones([]))
      moves, new = _optimized(step, ones, params, state)
      return _updates_of(params, moves), new

    return optax.GradientTransformation(init, update)

  def scale_gradients(
    self,
    raw_grads: Any,
    optimizer_name: str | None = None,
    clip_gradient_norm_to_value: float | None = None,
    clip_gradient_single_norm_to_value: float | None = None,
  ) -> tuple[Any, jax.Array]:
    """Measures and clips gradients; metrics become global summaries.

    Args:
      raw_grads: the gradients. Each is measured as a whole, also one of several
        stacked layers.
      optimizer_name: part of the names of metrics; None for none.
      clip_gradient_norm_to_value: limit of the global norm; None for that of
        `optimizer`.
      clip_gradient_single_norm_to_value: limit of each norm; likewise.

    Returns:
      The gradients, and a bool [], whether they are valid.
    """
    grads, limits = by_path(raw_grads), step_lib.limits_of(self, self.optimizer)
    given = {
      'norm': clip_gradient_norm_to_value,
      'single_norm': clip_gradient_single_norm_to_value,
    }
    limits = dataclasses.replace(
      limits, **{k: v for k, v in given.items() if v is not None}
    )
    squares = gradient_norms.squares(grads, dict.fromkeys(grads, 0))
    scaling = gradient_scaling.scaling(squares, limits)
    _, metrics = gradient_scaling.step_metrics(
      {optimizer_name or '': scaling},
      norms=self.grad_norm_summary,
      check=self.check_valid_step,
    )
    _summarize(metrics)
    if self.grad_norm_individual_vars:
      self.summarize_norms('per_var_grad_norm', raw_grads)
    scaled = gradient_norms.scale(grads, scaling.factors, limits.may_zero)
    valid = scaling.is_valid if self.check_valid_step else jnp.array(True)
    return replace_leaves(raw_grads, scaled), valid

  def update_states(
    self, grads: Any, states: Any, old_vars: Any, var_weight_hparams: Any
  ) -> tuple[Any, Any]:
    """Clips gradients and makes the step of the optimizers.

    Args:
      grads: the gradients.
      states: of `get_grad_tx(...).init` or the last step.
      old_vars: the variables.
      var_weight_hparams: their `WeightHParams`.

    Returns:
      The updates for `apply_gradient`, zeros if the step is invalid, and the
      next state. Metrics become global summaries.
    """
    step = self._step_of(grads, states, var_weight_hparams)
    scale = self.scale_of(step, by_path(_weights(old_vars)), states)
    moves, new = _optimized(step, scale.factors, old_vars, states)
    new = new._replace(norms=scale.norms)
    if self.skips_invalid_steps:
      zeros = jax.tree.map(jnp.zeros_like, moves)
      moves = branches.select(scale.is_valid, moves, zeros)
      new = branches.select(scale.is_valid, new, states)
    metrics = step_lib.optimizer_metrics(step, states.optimizer)
    _summarize(scale.metrics | metrics | step_lib.update_norm(step, moves))
    weights, paths = by_path(_weights(old_vars)), self.trained_paths(step.metas)
    trained = pick(by_path(_weights(grads)), paths)
    moves |= step_lib.overwritten(trained, weights, step.metas)
    return _updates_of(old_vars, moves), new

  def apply_gradient(
    self, old_vars: Any, transformed_grads: Any, var_weight_hparams: Any
  ) -> Any:
    """Returns the variables after a step; only weights change.

    Args:
      old_vars: the variables.
      transformed_grads: the updates, of `update_states`. With
        `scale_update_by_var_norm` they are scaled here.
      var_weight_hparams: the `WeightHParams` of the variables.
    """
    weights = by_path(_weights(old_vars))
    metas = _metas(var_weight_hparams)
    if self.var_norm_summary:
      squares = gradient_norms.squares(weights, dict.fromkeys(weights, 0))
      _summarize({'learning/var_norm': gradient_norms.norm(squares)})
    if self.var_norm_individual_vars:
      self.summarize_norms('per_var_norm', old_vars)
    new = {}
    for path, move in by_path(_weights(transformed_grads)).items():
      if base_layer.var_overwrite_with_gradient(metas[path]):
        new[path] = move
        continue
      if self.scale_update_by_var_norm:
        move = move * initial_scale(path, metas[path])
      if not base_layer.var_not_trainable(metas[path]):
        new[path] = (weights[path] + move).astype(weights[path].dtype)
    return _with_weights(old_vars, new)

  def plot_learning_rate(self, step: jax.Array | int) -> None:
    """Makes the learning rates after a number of steps global summaries."""
    for name, optimizer in self.named_optimizers().items():
      rate = optimizer.get_learning_rate(jnp.asarray(step))
      _summarize({f'learning/lr_{name}' if name else 'learning/lr': rate})

  def summarize_norms(self, summary_prefix: str, tensors: Any) -> None:
    """Makes the norm of each array a global summary `prefix/path`."""
    arrays = by_path(tensors)
    squares = gradient_norms.squares(arrays, dict.fromkeys(arrays, 0))
    _summarize(
      {f'{summary_prefix}/{path}': jnp.sqrt(x) for path, x in squares.items()}
    )

  def _step_of(self, gradients: Any, state: Any, metas: Any) -> step_lib.Step:
    """Returns the inputs of a step, whose updates are not scaled."""
    if self.scale_update_by_var_norm and self.ema_after_update:
      raise errors.UserError(
        f'{self.name}: ema_after_update averages scaled updates, which'
        ' scale_update_by_var_norm makes in apply_gradient; expected one of the'
        ' two, or Learner.update'
      )
    unscaled = copy.copy(self)
    unscaled.scale_update_by_var_norm = False
    return unscaled.step_of(
      _weights(gradients), state, weight_metas=_metas(metas)
    )


def _optimized(
  step: step_lib.Step, factors: Arrays, variables: Any, state: Any
) -> tuple[Arrays, Any]:
  """Returns the updates by path, and the next state."""
  updates, optimizer, average = step_lib.optimize(
    step, factors, by_path(_weights(variables)), state.optimizer, state.average
  )
  return updates, state._replace(optimizer=optimizer, average=average)


def _weights(tree: Any) -> Any:
  """Returns the tree of weights, of that or of one by collection."""
  return tree[base_layer.PARAMS] if base_layer.PARAMS in tree else tree


def _with_weights(tree: Any, weights: Arrays) -> Any:
  """Returns a tree, of weights or by collection, with some replaced by path."""
  in_collection = base_layer.PARAMS in tree
  prefix = f'{base_layer.PARAMS}/' if in_collection else ''
  return replace_leaves(
    tree, {f'{prefix}{path}': x for path, x in weights.items()}
  )


def _updates_of(variables: Any, updates: Arrays) -> Any:
  """Returns a tree like the variables, of updates; zeros for others."""
  zeros = jax.tree.map(jnp.zeros_like, variables)
  return _with_weights(zeros, updates)


def _metas(tree: Any) -> dict[str, base_layer.WeightHParams]:
  return by_path(
    _weights(tree), is_leaf=lambda x: isinstance(x, base_layer.WeightHParams)
  )


def _summarize(metrics: Arrays):
  for name, value in metrics.items():
    base_layer.add_global_summary(name, value)
