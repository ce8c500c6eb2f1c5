"""Starting a run from a checkpoint of Lingvo's trainer."""

import dataclasses
from typing import Any

import jax

from adaptors.checkpoints import files, importing, mapping


@dataclasses.dataclass(frozen=True)
class Start:
  """A checkpoint of Lingvo's that a run starts from.

  Attributes:
    checkpoint: the checkpoint.
    metadata: of its task.
    allow_missing: regular expressions of tensors that it may lack.
    allow_unused: regular expressions of tensors that may be left over.
  """

  checkpoint: files.TensorflowCheckpoint
  metadata: mapping.CheckpointMetadata
  allow_missing: tuple[str, ...] = ()
  allow_unused: tuple[str, ...] = ()

  @property
  def step(self) -> int:
    """The checkpoint's number of steps; 0 if it has none."""
    return importing.read_step(self.checkpoint, self.metadata)

  def __str__(self) -> str:
    return f"Lingvo's checkpoint {self.checkpoint.prefix} of step {self.step}"

  def state(self, program, batch, **options: Any) -> Any:
    """Returns the state of the checkpoint.

    Args:
      program: the task's `TaskProgram`.
      batch: a batch of this process, or its shapes.
      **options: as of `importing.read_state`.

    Raises:
      UserError: the checkpoint does not fit the task, or is damaged.
    """
    state = importing.read_state(
      self.checkpoint,
      self.metadata,
      program,
      batch,
      allow_missing=self.allow_missing,
      allow_unused=self.allow_unused,
      **options,
    )
    jax.block_until_ready(state)
    return state
