"""Metrics on disk: `metrics.jsonl` and TensorBoard event files."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from clu import values as clu_values
from etils import epy

from pax_compat import errors
from pax_compat.metrics import event_file, json_lines, png
from pax_compat.metrics.histograms import Histogram, histogram
from pax_compat.runs import job_dir

with epy.lazy_imports():  # They take long, and a run compiles meanwhile.
  from tensorboardX import summary
  from tensorboardX.proto import summary_pb2

# Name of the file of scalars that a training run writes in its folder.
JSON_LINES = 'metrics.jsonl'

# Prefixes of the splits that are evaluated or decoded.
_MEASURED = ('eval_', 'decode_')


class MetricWriter:
  """Writes the metrics of a run in process 0; elsewhere it does nothing.

  What a call writes is in the files when it returns; if they cannot be written,
  as the disk is full, it raises an OSError. See `json_lines` and `event_file`.
  """

  def __init__(
    self,
    job_log_dir: str | os.PathLike,
    *,
    resume_step: int | None = None,
    measures_again: bool = False,
    writes_events: bool = True,
    only_scalars: bool = False,
    json_lines_name: str = JSON_LINES,
    is_stale: Callable[[int, str], bool] = lambda step, split: False,
  ):
    """Opens the files of the run for appending.

    Args:
      job_log_dir: the folder of the run.
      resume_step: the step from which the run continues, 0 for a new run.
        Metrics that an earlier run wrote for later steps are dropped, because
        they are written again. None keeps everything.
      measures_again: whether that step is evaluated and decoded again, so that
        these metrics are dropped too.
      writes_events: whether there are event files for TensorBoard, besides
        `metrics.jsonl`.
      only_scalars: whether values of other types are left out.
      json_lines_name: name of the file of scalars. Each job that writes to the
        folder has its own.
      is_stale: (step, split) -> whether an earlier job's scalars in that file
        are dropped for another reason.
    """
    self._active = jax.process_index() == 0
    if not self._active:
      return
    self._folder = job_dir.checked_path(job_log_dir)
    self._resume_step = resume_step
    self._measures_again = measures_again
    self._writes_events = writes_events
    self._writes_others = writes_events and not only_scalars
    self._event_files: dict[str, event_file.EventFile] = {}
    self._first_texts: dict[str, tuple[int, str, str]] = {}

    def dropped(step: int, split: str) -> bool:
      first = self._first_stale_step(split)
      return is_stale(step, split) or (first is not None and step >= first)

    self._lines = json_lines.JsonLines(self._folder / json_lines_name, dropped)

  def write_scalars(
    self, step: int, split: str, scalars: Mapping[str, float]
  ) -> None:
    """Writes the metrics of one step.

    Args:
      step: the train step.
      split: such as `train` or `eval_test`; its event files are in the folder
        `summaries/<split>`.
      scalars: by name, numbers or arrays [].
    """
    if not self._active:
      return
    values = {name: float(value) for name, value in scalars.items()}
    self._lines.write(int(step), split, values)
    if not self._writes_events:
      return
    events = self._events(split)
    for name, value in values.items():
      events.add(summary.scalar(name, value), int(step))
    events.flush()

  def write_text(self, step: int, split: str, name: str, text: str) -> None:
    """Writes Markdown text to TensorBoard."""
    if not self._active or not self._writes_others:
      return
    self._write_summary(step, split, summary.text(name, text))

  def begin_with_text(
    self, step: int, split: str, name: str, text: str
  ) -> None:
    """Sets the Markdown text with which the events of a split begin.

    It is written with the first of them, or by `close`: the library that writes
    events takes long to import, and the first step need not wait for it.
    """
    if self._active and self._writes_others:
      self._first_texts[split] = (step, name, text)

  def write_values(
    self, step: int, split: str, values: Mapping[str, Any]
  ) -> None:
    """Writes scalars, and values of other types to TensorBoard only.

    Args:
      step: the train step.
      split: as for `write_scalars`.
      values: by name, numbers, `Histogram`, or clu values: scalars,
        histograms, texts, and images [N, H, W, C] or [H, W, C].

    Raises:
      UserError: a value has another type.
    """
    if not self._active:
      return
    scalars = {k: v for k, v in values.items() if _is_scalar(v)}
    self.write_scalars(
      step, split, {k: getattr(v, 'value', v) for k, v in scalars.items()}
    )
    if not self._writes_others:
      return
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
    made = summary.histogram_raw(
      name,
      min=float(value.low),
      max=float(value.high),
      num=int(counts.sum()),
      sum=float(value.total),
      sum_squares=float(value.total_squares),
      bucket_limits=limits[1:].tolist(),
      bucket_counts=counts.tolist(),
    )
    self._write_summary(step, split, made)

  def _write_images(
    self, step: int, split: str, name: str, images: np.ndarray
  ) -> None:
    images = images[np.newaxis] if images.ndim == 3 else images
    for index, image in enumerate(images):
      height, width, channels = image.shape
      encoded = summary_pb2.Summary.Image(
        height=height,
        width=width,
        colorspace=channels,
        encoded_image_string=png.encode(image),
      )
      tag = name if len(images) == 1 else f'{name}/{index}'
      value = summary_pb2.Summary.Value(tag=tag, image=encoded)
      self._write_summary(step, split, summary_pb2.Summary(value=[value]))

  def _write_summary(self, step: int, split: str, made: Any) -> None:
    events = self._events(split)
    events.add(made, int(step))
    events.flush()

  def close(self) -> None:
    """Closes all files. The writer cannot be used afterwards."""
    if not self._active:
      return
    self._lines.close()
    for split in tuple(self._first_texts):
      self._events(split).flush()
    for events in self._event_files.values():
      events.close()

  def _events(self, split: str) -> event_file.EventFile:
    if split not in self._event_files:
      self._event_files[split] = event_file.EventFile(
        self._folder / 'summaries' / split,
        purge_step=self._first_stale_step(split),
      )
      if split in self._first_texts:
        step, name, text = self._first_texts.pop(split)
        self._event_files[split].add(summary.text(name, text), step)
    return self._event_files[split]

  def _first_stale_step(self, split: str) -> int | None:
    """Returns the first step that is written again, None if no step is."""
    if self._resume_step is None:
      return None
    again = self._measures_again and split.startswith(_MEASURED)
    return self._resume_step + (0 if again else 1)


def _is_scalar(value: Any) -> bool:
  kinds = (int, float, np.generic, np.ndarray, jax.Array)
  return isinstance(value, clu_values.Scalar) or (
    isinstance(value, kinds) and np.ndim(value) == 0
  )
