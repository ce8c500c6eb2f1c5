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
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import tensorboardX
from absl import logging
from clu import values as clu_values
from tensorboardX.proto import summary_pb2

from pax_compat import errors
from pax_compat.metrics import png
from pax_compat.metrics.histograms import Histogram, histogram
from pax_compat.runs import job_dir

_FLUSH_SECONDS = 2

# How splits begin that are evaluated or decoded.
_MEASURED = ('eval_', 'decode_')


class MetricWriter:
  """Writes metrics of one run; on all processes but the first it does nothing.

  Lines of `metrics.jsonl` are in the file when a call returns; event files
  are written by a thread and follow within seconds.
  """

  def __init__(
    self,
    job_log_dir: str | os.PathLike,
    *,
    resume_step: int | None = None,
    measures_again: bool = False,
  ):
    """Opens the files of the run to append to them.

    Args:
      job_log_dir: the folder of the run.
      resume_step: the step from which the run continues, 0 if it starts. What
        an earlier run wrote for later steps is dropped, because it comes again.
        None keeps everything.
      measures_again: whether evaluations and decodings of that step come again
        too.
    """
    self._active = jax.process_index() == 0
    if not self._active:
      return
    self._folder = job_dir.checked_path(job_log_dir)
    self._resume_step = resume_step
    self._measures_again = measures_again
    self._event_files: dict[str, tensorboardX.SummaryWriter] = {}
    path = self._folder / 'metrics.jsonl'
    if path.exists():
      _drop_stale_lines(path, self._first_stale_step)
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

  def write_values(
    self, step: int, split: str, values: Mapping[str, Any]
  ) -> None:
    """Writes values of several kinds; all but scalars for TensorBoard only.

    Args:
      step: the train step.
      split: as for `write_scalars`.
      values: by name, numbers, `Histogram`, or values of clu: scalars,
        histograms, texts, and images [N, H, W, C] or [H, W, C].

    Raises:
      UserError: a value is of another kind.
    """
    if not self._active:
      return
    scalars = {k: v for k, v in values.items() if _is_scalar(v)}
    self.write_scalars(
      step, split, {k: getattr(v, 'value', v) for k, v in scalars.items()}
    )
    for name, value in values.items():
      if name not in scalars:
        self._write_value(step, split, name, value)

  def _write_value(self, step: int, split: str, name: str, value: Any) -> None:
    if isinstance(value, clu_values.Text):
      self.write_text(step, split, name, str(value.value))
    elif isinstance(value, clu_values.Histogram):
      self._write_histogram(step, split, name, histogram(value.value))
    elif isinstance(value, Histogram):
      self._write_histogram(step, split, name, value)
    elif isinstance(value, clu_values.Image):
      self._write_images(step, split, name, np.asarray(value.value))
    else:
      raise errors.UserError(
        f'{split}: the summary {name!r} is a {type(value).__name__}; expected a'
        ' scalar, histogram, image or text'
      )

  def _write_histogram(
    self, step: int, split: str, name: str, value: Histogram
  ) -> None:
    counts = np.asarray(value.counts)
    limits = np.linspace(float(value.low), float(value.high), len(counts) + 1)
    self._events(split).add_histogram_raw(
      name,
      min=float(value.low),
      max=float(value.high),
      num=int(counts.sum()),
      sum=float(value.total),
      sum_squares=float(value.total_squares),
      bucket_limits=limits[1:].tolist(),
      bucket_counts=counts.tolist(),
      global_step=int(step),
    )

  def _write_images(
    self, step: int, split: str, name: str, images: np.ndarray
  ) -> None:
    images = images[np.newaxis] if images.ndim == 3 else images
    for number, image in enumerate(images):
      height, width, channels = image.shape
      shown = summary_pb2.Summary.Image(
        height=height,
        width=width,
        colorspace=channels,
        encoded_image_string=png.encode(image),
      )
      tag = name if len(images) == 1 else f'{name}/{number}'
      self._events(split).file_writer.add_summary(
        summary_pb2.Summary(
          value=[summary_pb2.Summary.Value(tag=tag, image=shown)]
        ),
        int(step),
      )

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
        purge_step=self._first_stale_step(split),
      )
    return self._event_files[split]

  def _first_stale_step(self, split: str) -> int | None:
    """Returns the step from which on a split comes again, None for none."""
    if self._resume_step is None:
      return None
    again = self._measures_again and split.startswith(_MEASURED)
    return self._resume_step + (0 if again else 1)


def _is_scalar(value: Any) -> bool:
  kinds = (int, float, np.generic, np.ndarray, jax.Array)
  return isinstance(value, clu_values.Scalar) or (
    isinstance(value, kinds) and np.ndim(value) == 0
  )


def _drop_stale_lines(
  path: pathlib.Path, first_stale_step: Callable[[str], int | None]
) -> None:
  """Drops lines that come again, and lines that a kill cut off.

  Args:
    path: of the file.
    first_stale_step: returns the step from which on a split comes again, None
      for none.
  """
  kept, stale, torn = io.StringIO(), 0, 0
  with open(path, encoding='utf-8', errors='replace') as f:
    for line in f:
      found = _step_and_split_of(line)
      if found is None:
        torn += 1
        continue
      step, split = found
      first = first_stale_step(split)
      if first is not None and step >= first:
        stale += 1
      else:
        kept.write(line)
  if not stale and not torn:
    return
  job_dir.replace_text(path, kept.getvalue())
  logging.info(
    '%s: dropped %d lines that come again, and %d unreadable ones',
    path,
    stale,
    torn,
  )


def _step_and_split_of(line: str) -> tuple[int, str] | None:
  """Returns the step and the split of a whole line, None if it is torn."""
  try:
    found = json.loads(line) if line.endswith('\n') else {}
    return int(found['step']), str(found['split'])
  except (ValueError, KeyError, TypeError):
    return None
