"""Evaluates and decodes the variables of a checkpoint, split by split."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from pax_compat import base_input
from pax_compat.trainer import program, stopping
from pax_compat.trainer.evaluating import decoding, evaluation, measured
from pax_compat.trainer.feeding import dataset_inputs

# Prefixes of the splits, which are folders in `summaries`. Those of evaluations
# while training are other ones.
_EVAL, _DECODE = 'eval_test_', 'decode_test_'

# Values as a `MetricWriter` takes them, and a line for the user.
Measured = tuple[dict[str, Any], str]


class Measuring:
  """The evaluations and decodings of a job."""

  def __init__(
    self,
    *,
    task_program: program.TaskProgram,
    data: dataset_inputs.Inputs,
    folder: pathlib.Path,
    stop: stopping.Stop,
  ):
    """Measures nothing.

    Args:
      task_program: has the steps.
      data: the datasets to evaluate and to decode.
      folder: of the job, for the outputs of examples.
      stop: called between batches; returns whether to stop.
    """
    self._program = task_program
    self._folder = folder
    self._stop = stop
    self._by_split: dict[str, Callable[[int, Any], Measured]] = {}
    for name, one in data.decode.items():
      decode = functools.partial(self._decoded, name, one)
      self._by_split[f'{_DECODE}{name}'] = decode
    for name, one in data.eval.items():
      evaluate = functools.partial(self._evaluated, name, one)
      self._by_split[f'{_EVAL}{name}'] = evaluate

  @property
  def splits(self) -> tuple[str, ...]:
    """The names of the splits, one for each dataset."""
    return tuple(self._by_split)

  def measure(self, split: str, step: int, mdl_vars: Any) -> Measured:
    """Evaluates or decodes the dataset of a split.

    Args:
      split: one of `splits`.
      step: the number of train steps of the variables.
      mdl_vars: the model's variables.

    Raises:
      UserError: the dataset or the model is invalid.
      stopping.Interrupted: the job is to stop.
    """
    return self._by_split[split](step, mdl_vars)

  def _evaluated(
    self, name: str, data: base_input.BaseInput, step: int, mdl_vars: Any
  ) -> Measured:
    values = evaluation.evaluate(
      data,
      task_program=self._program,
      mdl_vars=mdl_vars,
      examples_path=measured.eval_path(
        self._folder, self._program.task, name, step
      ),
      stop=self._stop,
    )
    loss = self._program.loss_aggregator.loss_name
    return values, measured.eval_line(step, name, values, loss=loss)

  def _decoded(
    self, name: str, data: base_input.BaseInput, step: int, mdl_vars: Any
  ) -> Measured:
    values = decoding.decode(
      data,
      task_program=self._program,
      mdl_vars=mdl_vars,
      path=measured.decode_path(self._folder, name, step),
      profile=measured.decode_profile(
        self._folder, self._program, f'{_DECODE}{name}'
      ),
      stop=self._stop,
    )
    return values, measured.decode_line(step, name, values)
