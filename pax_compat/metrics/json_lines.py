"""Scalars of a run as JSON lines.

A line is one JSON object:

    {"step": 120, "split": "train", "name": "loss", "value": 2.413,
     "time": 1763900000.123}

The time is that of writing, in seconds since 1970 (UTC). JSON has neither NaN
nor infinity: there the value is null, and the line has one more field,
`"note"`, which is "nan", "inf" or "-inf".
"""

import json
import math
import pathlib
import time
from collections.abc import Callable, Mapping

from absl import logging

from pax_compat.runs import files, job_dir


class JsonLines:
  """A file of scalars, opened for appending."""

  def __init__(self, path: pathlib.Path, is_stale: Callable[[int, str], bool]):
    """Opens the file, and drops its stale and truncated lines.

    Args:
      path: of the file; it need not exist.
      is_stale: (step, split) -> whether lines of an earlier run are stale,
        because they are written again.
    """
    if path.exists():
      _drop_stale_lines(path, is_stale)
    self._file = open(path, 'a', encoding='utf-8')

  def write(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
    """Writes one line per scalar, and flushes."""
    now = round(time.time(), 3)
    for name, value in scalars.items():
      line = {'step': step, 'split': split, 'name': name, 'value': value}
      if not math.isfinite(value):
        line |= {'value': None, 'note': str(value)}
      line['time'] = now
      self._file.write(json.dumps(line, allow_nan=False) + '\n')
    self._file.flush()

  def close(self) -> None:
    self._file.close()


def _drop_stale_lines(
  path: pathlib.Path, is_stale: Callable[[int, str], bool]
) -> None:
  kept, stale, truncated = [], 0, 0
  with open(path, encoding='utf-8', errors='replace') as f:
    for line in f:
      parsed = _step_and_split(line)
      if parsed is None:
        truncated += 1
        continue
      if is_stale(*parsed):
        stale += 1
      else:
        kept.append(line)
  if stale or truncated:
    job_dir.replace_text(path, ''.join(kept))
    logging.info(
      '%s: dropped %d lines of steps that are run again, and %d unreadable'
      ' lines',
      path,
      stale,
      truncated,
    )


def _step_and_split(line: str) -> tuple[int, str] | None:
  """Returns the step and the split of a line, None if it is truncated."""
  try:
    fields = files.parse_json(line) if line.endswith('\n') else {}
    return int(fields['step']), str(fields['split'])
  except (ValueError, KeyError, TypeError):
    return None
