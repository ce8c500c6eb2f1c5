"""The experiment of a run of Lingvo's trainer, from the Params in its folder.

    /old/run/control/params.pbtxt        the Params of the model

The Params are those of the run, even if the class that made them has changed.
The file contains the training data only. For held-out datasets, give the
registered experiment (`--exp`) in addition to the run.
"""

import pathlib
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.params.text import reader
from pax_compat import errors

# Files with Params, in order of preference: proto text has types.
_FILES = (
  'trainer_params.pbtxt',
  'train/trainer_params.pbtxt',
  'control/params.pbtxt',
  'train/trainer_params.txt',
  'control/params.txt',
)


def model_params(logdir: str) -> Any:
  """Returns the Params of a run, like a class of Lingvo's registry.

  Args:
    logdir: the folder of the run.

  Raises:
    UserError: it does not have a file of Params, or the file cannot be read.
  """
  folder = pathlib.Path(logdir).expanduser()
  found = [folder / name for name in _FILES if (folder / name).is_file()]
  if not found:
    raise errors.UserError(
      f'--lingvo_logdir={logdir} has no Params of a run; expected one of'
      f' {", ".join(_FILES)} in it, or --exp with the name of its experiment'
    )
  logging.info('read the experiment from %s', found[0])
  model = reader.read_file(found[0]).params
  base = lingvo_runtime.module('lingvo.core.base_model_params')

  class RunParams(base.SingleTaskModelParams):
    """The Params that were read."""

    def Train(self):
      return model.input.Copy()

    def Task(self):
      return model.task.Copy()

    def Model(self):
      return model.Copy()

    def GetAllDatasetParams(self):
      return {'Train': self.Train()}

  return RunParams()
