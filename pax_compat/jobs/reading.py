"""Reads the variables of a checkpoint that may be deleted meanwhile."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pax_compat import checkpoints, errors
from pax_compat.jobs.watching import Watch
from pax_compat.trainer import model_vars, program


class UnreadableError(errors.UserError):
  """The files of a checkpoint are damaged or deleted; the text says how."""


def read(task_program: program.TaskProgram, watch: Watch, step: int) -> Any:
  """Returns the model's variables, averaged if the task keeps averages.

  The learner's state is not read. All processes call it together, and all
  return or all raise.

  Args:
    task_program: of the task.
    watch: the checkpoints.
    step: of the checkpoint.

  Raises:
    UnreadableError: the files of the checkpoint are damaged or deleted.
    UserError: the checkpoint does not fit the task.
  """
  mdl_vars, error = None, None
  try:
    stored = checkpoints.StoredCheckpoint(watch.directory, step)
  except Exception as e:  # noqa: BLE001 (see below)
    error = e
  if error is None:
    try:
      mdl_vars = model_vars.restore(
        task_program, stored, use_ema=task_program.learner.has_ema
      )
    except errors.UserError:  # It does not fit; in all processes alike.
      raise
    except Exception as e:  # noqa: BLE001 (see below)
      error = e
  if not _anywhere(error is not None):
    return mdl_vars
  # Libraries have many errors for files that are not there any more. If the
  # files are as they should be, it was something else.
  problem = watch.problem(step) if jax.process_index() == 0 else None
  if not _anywhere(problem is not None):
    raise error or RuntimeError(
      f'the checkpoint of step {step} in {watch.directory} cannot be read in'
      ' another process; see its log'
    )
  raise UnreadableError(problem or 'see the log of process 0')


def _anywhere(mine: bool) -> bool:
  """Returns whether a condition is true in any process."""
  if jax.process_count() == 1:
    return mine
  return bool(np.any(multihost_utils.process_allgather(np.bool_(mine))))
