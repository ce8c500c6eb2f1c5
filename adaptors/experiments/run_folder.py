"""The experiment of a run that Lingvo's trainer left.

    /old/run/control/params.pbtxt        the Params of the model

The Params of its text are those of the run, whatever became of the class that
made them. A text holds the training data alone: held-out datasets are those of
a registered experiment that is named beside the run.
"""

import pathlib
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.params.text import reader
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
