"""A user's own optimizer: Lingvo's `Apply` inside of JAX.

`Apply` reads and assigns TensorFlow variables. XLA compiles it as a function of
the values of these variables; `Applied` makes that function.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge import calling
from adaptors.bridge.functional import applying
from adaptors.equivalents import lingvo_optimizers
from adaptors.translate import registry
from adaptors.translate.view import ParamsView, class_path
from pax_compat import errors, learners
from pax_compat.config import REQUIRED, Config

# Methods that Lingvo's learner or trainer calls, and the bridge does not.
_NOT_CALLED = ('ApplyPostTrainingLoop', 'ComputeGradients')
_TINY_SHAPES = {'w': (3, 2), 'b': (2,)}


class LingvoOptimizer:
  """A Lingvo optimizer, built when it is needed; copying returns the same.

  Attributes:
    params: of the optimizer.
  """

  def __init__(self, params: Any):
    self.params = params.Copy()
    if 'add_summary_in_apply' in self.params:
      self.params.add_summary_in_apply = False
    self._applied = functools.cache(
      functools.partial(applying.Applied, self.params)
    )

  def __repr__(self):
    return f'LingvoOptimizer({class_path(self.params.cls)})'

  def __deepcopy__(self, memo):
    return self

  def applied(
    self, weights: Mapping[str, Any], names: Mapping[str, str]
  ) -> applying.Applied:
    """Returns the update of weights.

    Args:
      weights: arrays or their shapes and dtypes, by path.
      names: Lingvo's names of the variables, such as `lm/w/var:0`, by path;
        their paths if missing.
    """
    return self._applied(
      tuple(
        applying.Weight(
          path, names.get(path, path), tuple(w.shape), np.dtype(w.dtype).name
        )
        for path, w in weights.items()
      )
    )


class BridgedState(NamedTuple):
  """State of a bridged optimizer.

  Attributes:
    slots: variables of weights: trees like the weights, by name; see
      `Applied`.
    others: other variables, by name.
  """

  slots: dict[str, Any]
  others: dict[str, jax.Array]


class Count(NamedTuple):
  """Number of steps.

  Attributes:
    count: [], int32.
  """

  count: jax.Array


class BridgedOptimizer(lingvo_optimizers.ByVariables):
  """A Lingvo optimizer, compiled into the training step by TensorFlow.

  Attributes:
    lingvo_optimizer: a `LingvoOptimizer`.
  """

  lingvo_optimizer: Any = REQUIRED

  def grad_transformation(self):
    rate = self.learning_rate_fn()

    def init(weights):
      applied = self._applied(weights)
      slots = {
        slot: self._tree(weights, lambda path, s=slot: applied.initial(path, s))
        for slot in applied.slots
      }
      others = {k: jnp.asarray(x) for k, x in applied.others.items()}
      return BridgedState(slots, others), Count(jnp.zeros([], jnp.int32))

    def update(gradients, state, params=None, *, loss_weight=1.0, **unused):
      del unused
      (slots, others), (count,) = state
      applied, values = self._applied(params), learners.by_path(params)
      by_slot = {slot: learners.by_path(tree) for slot, tree in slots.items()}
      new_weights, new_slots, new_others = applied.in_jax(calling.in_jax)(
        values,
        by_slot,
        others,
        learners.by_path(gradients),
        jnp.asarray(rate(count), jnp.float32),
        count,
        jnp.asarray(loss_weight, jnp.float32),
      )
      updates = {path: new_weights[path] - w for path, w in values.items()}
      slots = {
        slot: self._tree(params, new.get) for slot, new in new_slots.items()
      }
      return self._tree(params, updates.get), (
        BridgedState(slots, new_others),
        Count(optax.safe_increment(count)),
      )

    return optax.GradientTransformationExtraArgs(init, update)

  def check_supports_no_op_steps(self):
    """Does nothing: a no-op step counts, and changes no variable."""

  def _applied(self, weights: Any) -> applying.Applied:
    return self.lingvo_optimizer.applied(
      learners.by_path(weights), self.variable_names
    )

  def _tree(self, weights: Any, value: Callable[[str], Any]) -> Any:
    """Returns a tree like the weights; without a value it is masked."""

    def leaf(path, old):
      del old
      found = value(learners.path_name(path))
      return optax.MaskedNode() if found is None else jnp.asarray(found)

    return jax.tree_util.tree_map_with_path(
      lambda path, x: x if _is_masked(x) else leaf(path, x),
      weights,
      is_leaf=_is_masked,
    )


def _is_masked(x: Any) -> bool:
  return isinstance(x, optax.MaskedNode)


def bridge(view: ParamsView) -> Config | None:
  """Returns the config of an optimizer without a translation.

  Args:
    view: its Params; all of them are read by Lingvo.

  Returns:
    None after an issue, if it cannot be bridged.
  """
  for name, _ in view.params.IterParams():
    view.get(name)
  optimizer = LingvoOptimizer(view.params)
  try:
    _check_class(view.params)
    weights = {
      path: jax.ShapeDtypeStruct(shape, jnp.float32)
      for path, shape in _TINY_SHAPES.items()
    }
    applied = optimizer.applied(weights, {})
    applied.check()
    sparse = applying.sparse_updates(optimizer.params)
  except Exception as error:
    view.issue('', not_bridged(view.params.cls, error))
    return None
  view.report.notes.append(
    f'{view.path} ({view.class_path}) is bridged: TensorFlow computes its Apply'
    ' inside of the step'
  )
  return BridgedOptimizer.config(
    lingvo_optimizer=optimizer,
    sparse_updates=sparse,
    uses_step=applied.uses_step,
    **_names(optimizer.params, applied),
  )


def _names(params: Any, applied: applying.Applied) -> dict[str, Any]:
  """Returns the names of variables in Lingvo's checkpoints; {} if unknown."""
  weights = [
    applying.Weight(path, path, shape, 'float32')
    for path, shape in _TINY_SHAPES.items()
  ]
  try:
    names = applying.names_in_graphs(params, weights)
  except Exception as error:  # User code runs here.
    logging.info('%s: %s', class_path(params.cls), errors.one_line(error))
    return {}
  found = {slot: set() for slot in applied.slots}
  for (path, slot), name in names.items():
    if path:
      found.setdefault(slot, set()).add(name.removeprefix(f'{path}/'))
  others = {name: text for (path, name), text in names.items() if not path}
  is_same = set(found) == set(applied.slots) and set(others) == set(
    applied.others
  )
  if not is_same or any(len(one) != 1 for one in found.values()):
    return {}
  return {
    'slot_names': {slot: one.pop() for slot, one in found.items()},
    'other_names': others,
  }


def not_bridged(cls: type, error: Exception) -> str:
  """Returns why a class cannot be bridged, and what to do."""
  place = errors.location_in_user_code(error)
  if isinstance(error, errors.UserError):
    why = str(error)
  else:
    why = errors.one_line(error)
  at = f' ({place})' if place else ''
  advice = registry.how_to_register(cls)
  return f'it cannot be bridged: {why}{at}{advice}'


def _check_class(params: Any):
  """Raises a UserError if an optimizer overrides what is not called."""
  base = lingvo_runtime.module('lingvo.core.optimizer').Base
  changed = [
    name
    for name in _NOT_CALLED
    if getattr(params.cls, name) is not getattr(base, name)
  ]
  if changed:
    raise errors.UserError(
      f'it overrides {", ".join(changed)}, which a bridged optimizer must not'
    )
  name = 'num_micro_batches'
  if name in params and params.Get(name) > 1:
    raise errors.UserError(f'{name} is above 1')
