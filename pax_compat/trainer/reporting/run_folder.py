"""Files that a run writes into its folder before it starts to train."""

import math
import pathlib
from typing import Any

import jax
from absl import logging

from pax_compat import learners
from pax_compat.configs import config_text
from pax_compat.runs import job_dir
from pax_compat.trainer.feeding import batch_shapes
from pax_compat.trainer.program import TaskProgram
from pax_compat.trainer.reporting import start_lines

_CONFIG = 'config.txt'
_MAX_CHANGES = 5


def write(
  folder: pathlib.Path,
  config: str,
  program: TaskProgram,
  dumps: dict[str, str],
  example: Any,
):
  """Writes the configs, the parameter table, and an experiment's own files.

  Args:
    folder: of the run.
    config: all configs as text, see `config_text.to_text`.
    program: of the task.
    dumps: contents by file name.
    example: a batch, or its shapes.
  """
  if jax.process_index() != 0:
    return
  files = {
    _CONFIG: config,
    'parameters.txt': parameter_table(program),
    **dumps,
  }
  log_changes(folder, config)
  for name, text in files.items():
    job_dir.write_text(folder / name, text)
  # Batches of different shapes are usual, so that earlier ones are not kept.
  job_dir.replace_text(
    folder / batch_shapes.FILE, batch_shapes.to_json(example)
  )


def log_changes(folder: Any, config: str):
  """Logs what differs from the config with which a run started before.

  Args:
    folder: of the run.
    config: all configs as text, see `config_text.to_text`.
  """
  path = folder / _CONFIG
  if jax.process_index() != 0 or not path.exists():
    return
  changes = config_text.changes(path.read_text(encoding='utf-8'), config)
  if changes:
    more = len(changes) - _MAX_CHANGES
    logging.warning(
      'the config differs from that of the last start: %s%s',
      '; '.join(changes[:_MAX_CHANGES]),
      f' and {more} more, see {path}.*' if more > 0 else '',
    )


def markdown(config: str) -> str:
  """Returns the configs as a code block, for TensorBoard.

  Args:
    config: the text of `config_text.to_text`.
  """
  return f'```\n{config}\n```'


def parameter_table(program: TaskProgram) -> str:
  """Returns a table of the variables: path, shape, count, dtype, sharding.

  Its last lines are the mesh and the number of parameters.
  """
  rows = [('path', 'shape', 'count', 'dtype', 'sharding')]
  variables = learners.by_path(program.abstract_state.mdl_vars)
  for path, x in variables.items():
    rows.append(
      (
        path,
        'x'.join(map(str, x.shape)) or 'scalar',
        f'{math.prod(x.shape):,}',
        str(x.dtype),
        str(tuple(x.sharding.spec)) if any(x.sharding.spec) else 'replicated',
      )
    )
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  lines = [
    '  '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))
    for row in rows
  ]
  ends = [
    f'mesh {start_lines.mesh_text(program.mesh.shape)}',
    f'total {num_parameters(program):,}',
  ]
  return '\n'.join([*(line.rstrip() for line in lines), *ends, ''])


def num_parameters(program: TaskProgram) -> int:
  """Returns the number of elements of the model's variables."""
  leaves = jax.tree.leaves(program.abstract_state.mdl_vars)
  return sum(math.prod(x.shape) for x in leaves)
