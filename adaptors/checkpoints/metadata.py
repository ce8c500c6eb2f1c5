"""What the names in a task's checkpoints depend on."""

import dataclasses
from collections.abc import Mapping

from adaptors.checkpoints.slots import OptimizerMetadata
from adaptors.translate.variables import VariableMap


@dataclasses.dataclass(frozen=True)
class CheckpointMetadata:
  """What the tensor names of a translated task's checkpoints depend on.

  Attributes:
    variables: maps variables here to Lingvo's.
    names: Lingvo's variable names by theta path, without ':0'.
    optimizers: the task's, in the order in which Lingvo creates their slots.
    defers_steps: whether only weight updates increment the global step.
    scheduled_decay: the final decay of the moving averages if a schedule sets
      it; else None.
  """

  variables: VariableMap
  names: Mapping[str, str]
  optimizers: tuple[OptimizerMetadata, ...]
  defers_steps: bool = False
  scheduled_decay: float | None = None
