"""Pax's programs and executors, as classes that code can refer to.

Modules of experiments derive classes from them and name them in annotations.
The trainer uses none: an experiment whose `executor` or `train_programs`
returns one is refused by `BaseExperiment.check_supported`.
"""

from typing import Any

from pax_compat.tasks.train_states import TrainState

__all__ = [
  'BaseEvalProgram',
  'BaseExecutor',
  'BaseTrainProgram',
  'DecodeProgramOutput',
  'DefaultExecutor',
  'EvalProgramOutput',
  'Partitioner',
  'Program',
  'ProgramOutput',
  'SingleTaskDecodeProgram',
  'SingleTaskEvalProgram',
  'SingleTaskTrainProgram',
  'TrainProgramOutput',
  'TrainState',
]


class _Unused:
  """Base of the classes; any arguments are accepted and ignored."""

  def __init__(self, *args: Any, **kwargs: Any):
    del args, kwargs


class BaseExecutor(_Unused):
  """Runs programs, in Pax."""


class DefaultExecutor(BaseExecutor):
  """Trains, evaluates and decodes, in Pax."""


class Partitioner(_Unused):
  """Splits functions over devices, in Pax."""


class Program(_Unused):
  """A function that an executor calls, in Pax."""


class BaseTrainProgram(Program):
  """A train step, in Pax."""


class SingleTaskTrainProgram(BaseTrainProgram):
  """A train step of one task, in Pax."""


class BaseEvalProgram(Program):
  """An evaluation, in Pax."""


class SingleTaskEvalProgram(BaseEvalProgram):
  """An evaluation of one task, in Pax."""


class SingleTaskDecodeProgram(Program):
  """Decodes one dataset, in Pax."""


class ProgramOutput(_Unused):
  """What a program returns, in Pax."""


class TrainProgramOutput(ProgramOutput):
  """What a train program returns, in Pax."""


class EvalProgramOutput(ProgramOutput):
  """What an eval program returns, in Pax."""


class DecodeProgramOutput(ProgramOutput):
  """What a decode program returns, in Pax."""
