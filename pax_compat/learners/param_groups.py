"""Parameter groups: an optimizer and the weights that it updates."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, optimizers
from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.learners.gradients import regularization
from pax_compat.learners.state.stacked_layers import StackedTransformation

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class ParamGroup:
  """An optimizer and the weights that it updates.

  Methods take weights and gradients by path, and pick those of the group.

  Attributes:
    name: the optimizer's name among several; '' for the only one.
    optimizer: the optimizer.
    paths: paths of its weights.
    transformation: the optimizer's transformation of these weights.
  """

  name: str
  optimizer: optimizers.BaseOptimizer
  paths: Collection[str]
  transformation: StackedTransformation

  def init(self, weights: Arrays) -> Any:
    """Returns the optimizer's initial state."""
    return self.transformation.init(self._own(weights))

  def abstract_state(
    self,
    weights: dict[str, jax.ShapeDtypeStruct],
    replicated: jax.sharding.Sharding | None,
  ) -> Any:
    """Returns shapes, dtypes and shardings of the state.

    Args:
      weights: shapes, dtypes and shardings.
      replicated: the sharding of leaves that belong to no weight.
    """
    own = self._own(weights)
    state = jax.eval_shape(self.transformation.init, own)
    return self.transformation.with_shardings(
      state, own, self.optimizer, replicated
    )

  def lp_terms(
    self, weights: Arrays, weight_metas, row_statistics
  ) -> dict[str, jax.Array]:
    """Returns the gradients of L1 or L2 regularization, by path."""
    return regularization.lp_terms(
      self.optimizer, self._own(weights), weight_metas, row_statistics
    )

  def learning_rate(self, state: Any) -> jax.Array:
    """Returns the learning rate [] of the step from a state."""
    count = self.transformation.count(state)
    return jnp.asarray(self.optimizer.learning_rate_fn()(count))

  def metrics(self, state: Any) -> Arrays:
    """Returns the optimizer's metrics [] of a state, by name."""
    metrics: Arrays = {}
    for one in self.transformation.states(state):
      metrics |= self.optimizer.metrics(one)
    return metrics

  def updates_weights(self, state: Any) -> jax.Array:
    """Returns a bool []: False if the step only accumulates gradients."""
    return self.optimizer.updates_weights(self.transformation.count(state))

  def no_op_step(self, state: Any) -> Any:
    """Returns the state after a no-op step."""
    return self.transformation.map_groups(state, self.optimizer.no_op_step)

  def step(
    self,
    gradients: Arrays,
    state: Any,
    weights: Arrays,
    weight_metas: Mapping[str, base_layer.WeightHParams],
    loss_weight: jax.Array,
    row_statistics: Mapping[str, RowStatistics],
  ) -> tuple[Arrays, Any]:
    """Makes a step. A missing gradient is zero.

    Args:
      gradients: by path.
      state: of `init` or the last step.
      weights: by path.
      weight_metas: their metadata.
      loss_weight: [], the weight of the batch's loss.
      row_statistics: those of the gradients of looked-up tables, by path;
        transformations get their counts as the argument `row_counts`.

    Returns:
      The updates to add to the group's weights, by path, and the next state.
    """
    own = self._own(weights)
    gradients = {p: gradients.get(p, jnp.zeros_like(w)) for p, w in own.items()}
    others: dict[str, Any] = dict(loss_weight=loss_weight)
    counts = {
      p: statistics.counts
      for p, statistics in self._own(row_statistics).items()
    }
    if counts:
      others['row_counts'] = counts
    updates, new_state = self.transformation.update(
      gradients, state, own, **others
    )
    decay = self.optimizer.decoupled_weight_decay
    if decay:
      rate = self.learning_rate(state) * decay
      updates = regularization.add_weight_decay(
        updates,
        own,
        weight_metas,
        jnp.where(self.updates_weights(state), rate, 0),
      )
    return updates, new_state

  def _own(self, values: Mapping[str, Any]) -> dict[str, Any]:
    return {path: values[path] for path in self.paths if path in values}


def join_states(states: dict[str, Any]) -> Any:
  """Returns the states of groups by name, or the state of the only group."""
  return states[''] if list(states) == [''] else states


def split_states(states: Any, groups: list[ParamGroup]) -> dict[str, Any]:
  """Returns the states of groups by name; reverses `join_states`."""
  return {'': states} if [g.name for g in groups] == [''] else states
