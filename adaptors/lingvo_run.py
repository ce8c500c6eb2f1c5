"""A run that Lingvo's trainer left: its experiment, its newest checkpoint.

    /old/run/control/params.pbtxt        what was trained
    /old/run/train/ckpt-00012000.*       how far it came

The Params of its text are those of the run, whatever became of the class that
made them. A text holds the training data alone: held-out datasets are those of
a registered experiment that is named beside the run.
"""

import dataclasses
import pathlib
from typing import Any

import jax
from absl import logging

from adaptors import lingvo_runtime
from adaptors.legacy_params import reader
from adaptors.lingvo_checkpoint import files, importing, mapping
from pax_compat import errors

# Where runs have their Params, the better form first: proto text tells types.
_TEXTS = (
  'trainer_params.pbtxt',
  'train/trainer_params.pbtxt',
  'control/params.pbtxt',
  'train/trainer_params.txt',
  'control/params.txt',
)


def model_params(logdir: str) -> Any:
  """Returns the Params of a run as an experiment of Lingvo's registry would.

  Args:
    logdir: the folder of the run.

  Raises:
    UserError: it has no text of its Params, or one that cannot be read.
  """
  folder = pathlib.Path(logdir).expanduser()
  found = [folder / name for name in _TEXTS if (folder / name).is_file()]
  if not found:
    raise errors.UserError(
      f'--lingvo_logdir={logdir} has no Params of a run; expected one of'
      f' {", ".join(_TEXTS)} in it, or --exp with the name of its experiment'
    )
  logging.info('the experiment is that of %s', found[0])
  model = reader.read_file(found[0]).params
  base = lingvo_runtime.module('lingvo.core.base_model_params')

  class RunParams(base.SingleTaskModelParams):
    """What was read."""

    def Train(self):
      return model.input.Copy()

    def Task(self):
      return model.task.Copy()

    def Model(self):
      return model.Copy()

    def GetAllDatasetParams(self):
      return {'Train': self.Train()}

  return RunParams()


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
