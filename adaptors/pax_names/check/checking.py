"""The three checks of one experiment: task, variables, numbers."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import jax.numpy as jnp

from adaptors.pax_names.check import numbers, recording, variables
from pax_compat import errors
from pax_compat.config import Config

OK, DIFFERS, FAILED, NONE = 'ok', 'differs', 'failed', '-'
# A batch that every pipeline can split into its microbatches.
_PIPELINE_ROWS = 24576
_ROWS = 16
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of one check.

  Attributes:
    result: `OK`, `DIFFERS`, `FAILED`, or `NONE` where nothing is recorded.
    reasons: lines about it.
  """

  result: str
  reasons: tuple[str, ...] = ()


def task(experiment: Callable[[], object]) -> Outcome:
  """Returns whether an experiment's task is built.

  Args:
    experiment: makes the experiment.
  """
  return _outcome(lambda: experiment().task() and [])


def variables_of(
  experiment: Callable[[], object], recorded: Mapping[str, list] | None
) -> Outcome:
  """Returns whether a model's variables are those of Pax.

  Args:
    experiment: makes the experiment.
    recorded: Pax's; None if there are none.
  """
  if recorded is None:
    return Outcome(NONE)

  def compare():
    model = experiment().task().model
    found = variables.of_model(model, rows=_rows(model), length=_ROWS)
    return variables.differences(found, variables.of_pax(recorded))

  return _outcome(compare)


def _rows(model: Config) -> int:
  network = getattr(model, 'lm_tpl', None)
  stack = getattr(network, 'stacked_transformer_tpl', None)
  is_pipeline = hasattr(stack, 'num_pipeline_stages')
  return _PIPELINE_ROWS if is_pipeline else _ROWS


def numbers_of(
  experiment: Callable[[], object], recorded: pathlib.Path | None
) -> Outcome:
  """Returns whether a model computes the loss and gradients of Pax.

  Args:
    experiment: makes the experiment.
    recorded: the recording; None if there is none.
  """
  if recorded is None:
    return Outcome(NONE)
  notes = []

  def compare():
    cls = type(experiment())
    attributes = recording.attributes(recorded)
    model = type(cls.__name__, (cls,), attributes)().task().model
    batch, pax = recording.of_file(recorded)
    tolerances = numbers.Tolerances()
    # Some experiments of Pax do not read the attribute FPROP_DTYPE.
    model.fprop_dtype = recording.dtype(recorded)
    if model.fprop_dtype == jnp.bfloat16:
      notes.append('recorded in bfloat16')
      tolerances = numbers.BFLOAT16
    found = numbers.of_model(model, pax.params, batch)
    return numbers.differences(found, pax, tolerances)

  outcome = _outcome(compare)
  return dataclasses.replace(outcome, reasons=(*notes, *outcome.reasons))


def _outcome(compare: Callable[[], list[str]]) -> Outcome:
  """Returns the outcome of a function that returns differences."""
  try:
    found = compare()
  except Exception as error:  # noqa: BLE001 (code of the checkout runs)
    return Outcome(FAILED, (errors.one_line(error),))
  if not found:
    return Outcome(OK)
  return Outcome(DIFFERS, tuple(errors.listed(found, _SHOWN)))
