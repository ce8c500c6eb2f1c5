"""What of a task its checkpoints depend on."""

import dataclasses
from collections.abc import Mapping

from adaptors.checkpoints.slots import OptimizerFacts
from adaptors.translate.variables import VariableMap


@dataclasses.dataclass(frozen=True)
class Facts:
  """What of a translated task the tensors' names depend on.

  Attributes:
    variables: which variables here are which of Lingvo's.
    names: of Lingvo's variables by theta path, without ':0'.
    optimizers: the task's, in the order in which Lingvo's make their slots.
    defers_steps: whether the global step grows with updates of weights only.
    scheduled_decay: of the moving averages, where a schedule sets it, at last.
  """

  variables: VariableMap
  names: Mapping[str, str]
  optimizers: tuple[OptimizerFacts, ...]
  defers_steps: bool = False
  scheduled_decay: float | None = None
