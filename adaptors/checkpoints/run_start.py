"""A checkpoint of Lingvo's trainer as the start of a run."""

import dataclasses
from typing import Any

import jax

from adaptors.checkpoints import files, importing, mapping


@dataclasses.dataclass(frozen=True)
class Start:
  """The newest checkpoint of a run, to go on from.

  Attributes:
    checkpoint: the checkpoint.
    facts: of its task.
    allow_missing: regular expressions of tensors that it may lack.
    allow_unused: regular expressions of tensors that may be left over.
  """

  checkpoint: files.TensorflowCheckpoint
  facts: mapping.Facts
  allow_missing: tuple[str, ...] = ()
  allow_unused: tuple[str, ...] = ()

  @property
  def step(self) -> int:
    """How many steps were made, 0 where the checkpoint does not say."""
    return importing.read_step(self.checkpoint, self.facts)

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
      self.facts,
      program,
      batch,
      allow_missing=self.allow_missing,
      allow_unused=self.allow_unused,
      **options,
    )
    jax.block_until_ready(state)
    return state
