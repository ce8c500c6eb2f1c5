"""Updates of a model's variables that depend on the weights after a step."""

from collections.abc import Mapping
from typing import Any

import jax

from pax_compat import base_layer, base_model
from pax_compat.base_layer import BEFORE_STEP, NON_TRAINABLE, PARAMS
from pax_compat.nested_map import NestedMap


def update(
  model: Any,
  before: Mapping[str, Any],
  updated: Mapping[str, Any],
  batch: NestedMap,
  key: jax.Array,
) -> dict[str, Any]:
  """Returns the collections of `updated` but the weights, after the model's own
  `after_update`.

  Args:
    model: the model.
    before: all variables before the step, by collection.
    updated: the new weights, and the variables that the model has updated.
    batch: of the step.
    key: of the random numbers of its forward pass.
  """
  others = {k: v for k, v in updated.items() if k != PARAMS}
  default = base_model.BaseModel.after_update
  cls = type(model)
  if cls.after_update is default or NON_TRAINABLE not in others:
    return others
  kept = {
    f'{name}{BEFORE_STEP}': before[name] for name in (PARAMS, NON_TRAINABLE)
  }
  _, changed = model.apply(
    {**before, **updated, **kept},
    batch,
    method='after_update',
    rngs={base_layer.RANDOM: key},
    mutable=[NON_TRAINABLE],
  )
  return others | dict(changed)
