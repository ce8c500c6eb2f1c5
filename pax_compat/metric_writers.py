"""Metrics on disk: `metrics.jsonl` and TensorBoard event files.

A line of `metrics.jsonl` is one JSON object:

    {"step": 120, "split": "train", "name": "loss", "value": 2.413}

JSON has no NaN and no infinity: there the value is null, and the line has one
field more, `"note"`, which is "nan", "inf" or "-inf".
"""

import io
import json
import math
import os
import pathlib
import time
from collections.abc import Mapping

import jax
import tensorboardX
from absl import logging

from pax_compat import job_dir

_FLUSH_SECONDS = 2


class MetricWriter:
  """Writes metrics of one run; on all processes but the first it does nothing.

  Lines of `metrics.jsonl` are in the file when a call returns; event files
  are written by a thread and follow within seconds.
  """

  def __init__(
    self, job_log_dir: str | os.PathLike, *, resume_step: int | None = None
  ):
    """Opens the files of the run to append to them.

    Args:
      job_log_dir: the folder of the run.
      resume_step: the step from which the run continues, 0 if it starts. What
        an earlier run wrote for later steps is dropped, because it comes again.
        None keeps everything.
    """
    self._active = jax.process_index() == 0
    if not self._active:
      return
    self._folder = job_dir.checked_path(job_log_dir)
    self._resume_step = resume_step
    self._event_files: dict[str, tensorboardX.SummaryWriter] = {}
    path = self._folder / 'metrics.jsonl'
    if path.exists():
      _drop_stale_lines(path, resume_step)
    self._lines = open(path, 'a', encoding='utf-8')

  def write_scalars(
    self, step: int, split: str, scalars: Mapping[str, float]
  ) -> None:
    """Writes the metrics of one step.

    Args:
      step: the train step.
      split: names what was measured, such as `train`, and the folder of its
        event files, `summaries/<split>`.
      scalars: name to value; zero-dimensional arrays do.
    """
    if not self._active:
      return
    values = {name: float(value) for name, value in scalars.items()}
    for name, value in values.items():
      line = {'step': int(step), 'split': split, 'name': name, 'value': value}
      if not math.isfinite(value):
        line |= {'value': None, 'note': str(value)}
      self._lines.write(json.dumps(line, allow_nan=False) + '\n')
    self._lines.flush()
    events = self._events(split)
    for name, value in values.items():
      events.add_scalar(name, value, int(step))

  def write_text(self, step: int, split: str, name: str, text: str) -> None:
    """Writes a text, in Markdown, for TensorBoard only."""
    if not self._active:
      return
    self._events(split).add_text(name, text, int(step))

  def close(self) -> None:
    """Closes all files. The writer cannot be used afterwards."""
    if not self._active:
      return
    self._lines.close()
    for events in self._event_files.values():
      events.close()

  def _events(self, split: str) -> tensorboardX.SummaryWriter:
    if split not in self._event_files:
      self._event_files[split] = tensorboardX.SummaryWriter(
        logdir=str(self._folder / 'summaries' / split),
        flush_secs=_FLUSH_SECONDS,
        # Two runs that start in the same second must not share a file name.
        filename_suffix=f'.{time.time_ns()}',
        # Tells TensorBoard to hide what an earlier run wrote from there on.
        purge_step=(
          None if self._resume_step is None else self._resume_step + 1
        ),
      )
    return self._event_files[split]


def _drop_stale_lines(path: pathlib.Path, resume_step: int | None) -> None:
  """Drops lines that come again, and lines that a kill cut off."""
  kept, later, torn = io.StringIO(), 0, 0
  with open(path, encoding='utf-8', errors='replace') as f:
    for line in f:
      step = _step_of(line)
      if step is None:
        torn += 1
      elif resume_step is not None and step > resume_step:
        later += 1
      else:
        kept.write(line)
  if not later and not torn:
    return
  job_dir.replace_text(path, kept.getvalue())
  logging.info(
    '%s: dropped %d lines of steps after %s, which come again, and %d'
    ' unreadable lines',
    path,
    later,
    resume_step,
    torn,
  )


def _step_of(line: str) -> int | None:
  """Returns the step of a whole line, None if it is torn."""
  try:
    return int(json.loads(line)['step']) if line.endswith('\n') else None
  except (ValueError, KeyError, TypeError):
    return None
