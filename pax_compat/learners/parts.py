"""An optimizer and the weights that it has."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pax_compat import base_layer, optimizers
from pax_compat.learners.gradients import regularization
from pax_compat.learners.state.stacked_layers import StackedTransformation

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Part:
  """An optimizer and its weights.

  Methods take weights and gradients by path, and pick those of the optimizer.

  Attributes:
    name: of the optimizer among several; '' for the only one.
    optimizer: the optimizer.
    paths: of its weights.
    transformation: what it does with them.
  """

  name: str
  optimizer: optimizers.BaseOptimizer
  paths: Collection[str]
  transformation: StackedTransformation

  def init(self, weights: Arrays) -> Any:
    """Returns the optimizer's first state."""
    return self.transformation.init(self._own(weights))

  def abstract_state(
    self,
    weights: dict[str, jax.ShapeDtypeStruct],
    elsewhere: jax.sharding.Sharding | None,
  ) -> Any:
    """Returns shapes, dtypes and shardings of the state.

    Args:
      weights: shapes, dtypes and shardings.
      elsewhere: the sharding of what belongs to no weight.
    """
    own = self._own(weights)
    state = jax.eval_shape(self.transformation.init, own)
    return self.transformation.placed(
      state, own, self.optimizer.reduced_dim, elsewhere
    )

  def lp_terms(
    self, weights: Arrays, weight_metas, row_facts
  ) -> dict[str, jax.Array]:
    """Returns what L1 or L2 regularisation adds to gradients, by path."""
    return regularization.lp_terms(
      self.optimizer, self._own(weights), weight_metas, row_facts
    )

  def learning_rate(self, state: Any) -> jax.Array:
    """Returns the learning rate [] of the step from a state."""
    count = self.transformation.count(state)
    return jnp.asarray(self.optimizer.learning_rate_fn()(count))

  def updates_weights(self, state: Any) -> jax.Array:
    """Whether the step from a state updates weights, as a bool [].

    One that only collects gradients does not.
    """
    return self.optimizer.updates_weights(self.transformation.count(state))

  def rested(self, state: Any) -> Any:
    """Returns the state after a step in which the weights were not trained."""
    return self.transformation.rested(state, self.optimizer.rested)

  def step(
    self,
    gradients: Arrays,
    state: Any,
    weights: Arrays,
    weight_metas: Mapping[str, base_layer.WeightHParams],
    loss_weight: jax.Array,
  ) -> tuple[Arrays, Any]:
    """Makes a step. A weight without a gradient has one of zero.

    Args:
      gradients: by path.
      state: of `init` or the last step.
      weights: by path.
      weight_metas: what they are.
      loss_weight: [], what the loss of the batch weighs.

    Returns:
      What is added to the optimizer's weights, by path, and its next state.
    """
    own = self._own(weights)
    forces = {p: gradients.get(p, jnp.zeros_like(w)) for p, w in own.items()}
    updates, new_state = self.transformation.update(
      forces, state, own, loss_weight=loss_weight
    )
    decay = self.optimizer.decoupled_weight_decay
    if decay:
      rate = self.learning_rate(state) * decay
      updates = regularization.decayed(
        updates,
        own,
        weight_metas,
        jnp.where(self.updates_weights(state), rate, 0),
      )
    return updates, new_state

  def _own(self, values: Mapping[str, Any]) -> dict[str, Any]:
    return {path: values[path] for path in self.paths if path in values}


def joined(states: dict[str, Any]) -> Any:
  """Returns the states of several optimizers by name, or that of the only."""
  return states[''] if list(states) == [''] else states


def by_name(states: Any, parts: list[Part]) -> dict[str, Any]:
  """Returns the states of optimizers by name, from what `joined` returned."""
  return {'': states} if [p.name for p in parts] == [''] else states
