"""Programs of Pax can be derived from and made, and are refused if used."""

import pytest

from adaptors import pax_names
from pax_compat import errors

pax_names.install()


def _experiment():
  from paxml import base_executor, base_experiment, executors, programs

  class OwnExecutor(executors.DefaultExecutor):
    def reset(self) -> base_executor.BaseExecutor:
      return self

  class OwnProgram(programs.SingleTaskTrainProgram):
    def __init__(self, executor: OwnExecutor):
      super().__init__()
      self.executor = executor

    def run(self, state: programs.TrainState) -> programs.TrainProgramOutput:
      raise NotImplementedError

  class Own(base_experiment.BaseExperiment):
    def __init__(self):
      super().__init__()
      self.program = OwnProgram(OwnExecutor().reset())

    def task(self):
      return None

    def datasets(self):
      return []

    def executor(self):
      return self.program.executor

    def train_program(self):
      return self.program

  return Own


def test_an_experiment_with_programs_is_refused():
  with pytest.raises(errors.UserError, match=r'Own.train_program is not supp'):
    type('Own', (_experiment(),), {'executor': None})().check_supported()
  with pytest.raises(errors.UserError, match=r'program = None` runs without'):
    _experiment()().check_supported()


def test_one_without_them_runs():
  none = {'executor': None, 'train_program': None}
  type('Derived', (_experiment(),), none)().check_supported()
