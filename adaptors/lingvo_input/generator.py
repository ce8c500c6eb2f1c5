"""One host's Lingvo input generator: built on first use, read, closed.

Legend: B batch.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from adaptors.lingvo_input import host_files
from adaptors.lingvo_input.checks import (
  generator_kinds,
  id_checks,
  params_checks,
  record_trial,
)
from adaptors.lingvo_input.drivers import (
  backends,
  endless,
  file_types,
  generator_driver,
  randomness,
)
from adaptors.lingvo_input.shapes import bucket_shapes, given_lengths
from pax_compat import errors
from pax_compat.nested_map import NestedMap

_HOW_TO_END = (
  'an evaluation needs one epoch. Switch its repetition off'
  ' (cluster_do_eval=True does it for many tf.data inputs), or set num_batches'
)


@dataclasses.dataclass(frozen=True)
class Settings:
  """How one host reads a generator.

  Attributes:
    label: the input's name in messages.
    params: Lingvo Params of the generator, a copy that may be changed.
    backend: what the generator finds while it is built. If all hosts read the
      same order, that is host 0 of 1. With a seed, the order must be
      reproducible.
    is_training: whether batches contain `source_selected`, and no strings.
    must_end: whether the data must end by itself.
    short_batches: whether the last batch may be short. A generator with a fixed
      batch size is then read example by example.
    split_files: see `LingvoInputAdaptor`, as for the following ones.
    split_records: of `LingvoInputAdaptor`.
    bytes_to_check: of `LingvoInputAdaptor`.
    known_ids: of `BaseInput`.
  """

  label: str
  params: Any
  backend: backends.Settings
  is_training: bool
  must_end: bool
  short_batches: bool
  split_files: bool
  split_records: bool
  bytes_to_check: int | None
  known_ids: int | None


class Generator:
  """A generator with its record files; not thread-safe.

  Attributes:
    settings: how it is read; `must_end` may be changed.
    params: Lingvo Params of the generator.
    records: the files, and copies of records, that this host reads.
    first_step: the training step of the first batch.
    refused_records: number of records that the generator refuses.
    is_closed: whether it may not be built any more.
  """

  def __init__(self, settings: Settings):
    """Checks the Params and the files; builds nothing.

    Raises:
      UserError: the reader would abort, hang or fail with them.
    """
    self.settings = settings
    self._label = settings.label
    self.params = settings.params
    self.first_step = 0
    self.refused_records = 0
    self.is_closed = False
    params_checks.check_input(self._label, self.params)
    splits, backend = settings.split_files, settings.backend
    self.records = host_files.HostRecords(
      self._label,
      self.params,
      hosts=backend.num_infeed_hosts if splits else 1,
      host=backend.infeed_host_index if splits else 0,
      split_records=settings.split_records,
      skip_bad_records=backend.skips_bad_records,
      bytes_to_check=settings.bytes_to_check,
      file_types=lambda: file_types.in_graph(backend, self.params),
    )
    self._backend_settings = dataclasses.replace(
      backend, trial=record_trial.RecordTrial(self.records.copies.origin)
    )
    self._check_ids = id_checks.IdCheck(
      self._label, self.params, settings.known_ids
    )
    self._with_padding_rows = generator_kinds.marks_padding_rows(self.params)
    self._driver: generator_driver.GeneratorDriver | None = None
    self._logged: set[str] = set()
    self._last_ones = np.ones(0, np.float32)

  def log_once(self, text: str, *args: Any):
    """Logs a line about the input, the first time only."""
    if text not in self._logged:
      self._logged.add(text)
      logging.info('%s: ' + text, self._label, *args)

  def driver(self) -> generator_driver.GeneratorDriver:
    """Returns the live driver, built on first use.

    Raises:
      UserError: the generator cannot be built, or never ends but must.
    """
    if self.is_closed:
      raise RuntimeError(f'{self._label} is closed')
    if self._driver is None:
      self.records.check.start()
      driver = self._build()
      try:
        self._check(driver)
      except errors.UserError:
        driver.close()
        raise
      self._driver = driver
      self.refused_records = driver.refused_records
      if driver.dropped:
        self.log_once(
          'dropped from batches, as no device takes them: %s',
          ', '.join(driver.dropped),
        )
    return self._driver

  def _build(self) -> generator_driver.GeneratorDriver:
    repeats = getattr(self.params, 'repeat_count', -1)
    if repeats != -1:
      self.log_once(
        'repeat_count is %d: the files are read in order, without shuffling',
        repeats,
      )
    if not self.settings.short_batches:
      return self._build_with(self.params)
    # Where the batch size is fixed, a short batch would fail or be dropped.
    single = _with_reader_batch(self.params, 1)
    try:
      driver = self._build_with(self.params)
      if driver.static_batch in (None, 1):
        return driver
      driver.close()
      reason = f'its batches have the fixed size {driver.static_batch}'
    except errors.UserError as e:
      # A short first batch may be what failed.
      if single == self.params:
        raise
      reason = str(e)
    self.log_once('it is read example by example, as %s', reason)
    self.params = single
    return self._build_with(single)

  def _build_with(self, params: Any) -> generator_driver.GeneratorDriver:
    settings = self.settings
    driver = generator_driver.GeneratorDriver(
      params=self.records.prepare(params.Copy()),
      settings=self._backend_settings,
      adds_source=settings.is_training,
      keeps_strings=not settings.is_training,
      first_step=self.first_step,
    )
    if settings.backend.seed is not None:
      try:
        randomness.check(self._label, driver.graph)
      except errors.UserError:
        driver.close()
        raise
    return driver

  def _check(self, driver: generator_driver.GeneratorDriver):
    if self.settings.must_end:
      self.check_end(driver.finite)
    self._check_step(driver)

  def _check_step(self, driver: generator_driver.GeneratorDriver):
    if driver.uses_step and not self.settings.is_training:
      raise errors.UserError(
        f'{self._label}: its batches depend on the training step, as'
        ' those of a CurriculumDataSource do; expected an evaluation of the'
        ' data of one stage'
      )

  def ends(self) -> bool | None:
    """Returns whether the data ends; None if unknown. Builds the generator.

    Raises:
      UserError: the generator cannot be built, or its batches depend on the
        training step.
    """
    self.records.check.start()
    driver = self._build()
    try:
      self._check_step(driver)
      return driver.finite
    finally:
      driver.close()  # Its threads are not needed now.

  def check_end(self, ends: bool | None):
    """Raises a UserError if the data never ends.

    Args:
      ends: whether it ends; None if unknown.
    """
    if ends is False:
      raise errors.UserError(f'{self._label} never ends: {_HOW_TO_END}')

  def end_guard(self) -> endless.Guard:
    """Returns a check of each batch that raises if the data seems endless."""
    if not self.settings.must_end:
      return endless.no_guard
    return endless.guard(
      self._label,
      _HOW_TO_END,
      ends=self.driver().finite,
      num_samples=getattr(self.params, 'num_samples', 0),
    )

  def next(self) -> NestedMap:
    """Returns the next batch, leaves [B, ...], with `eval_sample_weights` [B].

    Raises:
      StopIteration: the data is at its end.
      UserError: a record is damaged, or an id is not in the vocabulary.
    """
    self.records.check.raise_if_damaged()
    try:
      batch = self.driver().next()
    except StopIteration:
      self.records.check.finish()  # A damaged record may look like the end.
      raise
    except Exception as e:
      explained = self.records.explain(e)
      if explained is None:
        raise
      raise explained from e
    self._check_ids(batch)
    if 'eval_sample_weights' not in batch:
      batch = self._with_padding_rows(batch)
    if 'eval_sample_weights' not in batch:
      batch['eval_sample_weights'] = self._ones(bucket_shapes.first_rows(batch))
    return batch

  def _ones(self, rows: int) -> np.ndarray:
    if self._last_ones.shape[0] != rows:
      self._last_ones = np.ones(rows, np.float32)
    return self._last_ones.copy()  # In a quarter of the time of np.ones.

  def skip(self):
    """Skips a batch; StopIteration at the end of the data."""
    self.driver().next()

  def restart(self):
    """Frees the session and its threads; the next batch is the first again."""
    if self._driver is not None:
      self._driver.close()
      self._driver = None

  def close(self):
    """Frees the session, its threads and the copies of records."""
    self.restart()
    self.records.close()


class BucketBatches:
  """A generator's batches, each padded to the bound of its bucket."""

  def __init__(
    self,
    generator: Generator,
    buckets: bucket_shapes.Buckets,
    lengths: given_lengths.GivenLengths,
    watch: given_lengths.ShapeWatch,
    check_shape: Callable[[NestedMap], None] | None = None,
  ):
    """Reads nothing yet.

    Args:
      generator: at its start.
      buckets: of the generator.
      lengths: that fields are padded to.
      watch: sees each batch.
      check_shape: raises if a batch has an unexpected shape; None for no check.
    """
    self._generator = generator
    self._buckets = buckets
    self._lengths = lengths
    self._watch = watch
    self._check_shape = check_shape
    self._guard: endless.Guard | None = None
    self._count = 0

  def next(self) -> NestedMap:
    """Returns the next batch.

    Raises:
      StopIteration: the data is at its end.
    """
    batch = self._generator.next()
    rows = bucket_shapes.batch_rows(batch)
    if rows:
      self._count += rows
      self._guard = self._guard or self._generator.end_guard()
      self._guard(batch, self._count)
    fixed = self._generator.driver().fixed_lengths
    batch = self._lengths(self._buckets.fit(batch, rows, fixed))
    added = batch['eval_sample_weights'].shape[0] - rows if rows else 0
    if added:
      self._generator.log_once(
        'a batch came short, of %d examples, and got %d rows of weight 0; so'
        ' will others',
        rows,
        added,
      )
    self._watch(batch)
    if self._check_shape is not None:
      self._check_shape(batch)
    return batch

  def skip(self):
    """Skips a batch; StopIteration at the end of the data."""
    self._generator.skip()


def _with_reader_batch(params: Any, size: int) -> Any:
  """Returns a copy of a generator's Params with another batch size."""
  params = params.Copy()
  if 'bucket_batch_limit' in params:
    params.bucket_batch_limit = [size] * len(params.bucket_batch_limit)
  elif 'batch_size' in params:
    params.batch_size = size
  return params
