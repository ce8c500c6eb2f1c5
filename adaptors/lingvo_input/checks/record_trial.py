"""Finds records that the generator's processor refuses, before reading starts.

Such as one that is not a tf.Example, or an image that cannot be decoded.
Lingvo's reader drops them silently.
"""

import time
from collections.abc import Callable, Iterator

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import params_checks, reader_params
from adaptors.records import record_files
from pax_compat import errors

# The number of records tried, and of files, if all should pass.
_RECORDS_TO_TRY = 256
_FILES_TO_TRY = 16

# The time for counting refused records.
_SECONDS_TO_COUNT = 120.0


class RecordTrial:
  """Tries the records of one input's readers, once for each reader.

  It belongs to the input, as readers are built again for each evaluation.
  """

  def __init__(
    self,
    origin: Callable[[str, int], tuple[str, int]] = lambda *origin: origin,
  ):
    """Tries nothing yet.

    Args:
      origin: returns the original file of a record and its index there, given
        those of a copy; see `RecordCopies.origin`.
    """
    self._origin = origin
    # The number of refused records, by the reader's settings.
    self._refused: dict[tuple, int] = {}

  def check(
    self,
    name: str,
    reader: reader_params.Reader,
    process: Callable[[int, bytes], object],
    *,
    skip: bool,
  ) -> int:
    """Tries records of a reader; later calls return the first result.

    Args:
      name: of the input, in messages.
      reader: of its graph.
      process: makes an example of the index of a source and a record; raises
        if it cannot. TensorFlow's CancelledError drops a record on purpose.
      skip: whether refused records are counted; if not, they are errors. With
        it all records are tried, within a time limit; if not, some records of
        the first files.

    Returns:
      The number of refused records.

    Raises:
      UserError: a record is refused, and `skip` is False.
    """
    key = (reader.patterns, reader.bounds, skip)
    if key not in self._refused:
      self._refused[key] = _count_refused(
        name, reader, process, skip=skip, origin=self._origin
      )
    return self._refused[key]


def _count_refused(
  name: str,
  reader: reader_params.Reader,
  process: Callable[[int, bytes], object],
  *,
  skip: bool,
  origin: Callable[[str, int], tuple[str, int]],
) -> int:
  """Tries records of a reader; see `RecordTrial.check`."""
  cancelled = lingvo_runtime.tensorflow().errors.CancelledError
  refused, count, first = 0, 0, ''
  start = time.monotonic()
  for source, path, index, record in _records(name, reader, skip):
    count += 1
    try:
      process(source, record)
    except cancelled:
      continue
    except Exception as e:  # noqa: BLE001 (the processor is the user's code)
      path, index = origin(path, index)
      problem = f'record {index} of {path}: {_reason(e)}'
      if not skip:
        raise errors.UserError(
          f'{name}: the generator refuses {problem}; replace the file, or leave'
          ' such records out with --skip_bad_records (skip_bad_records=True of'
          ' the input)'
        ) from e
      refused, first = refused + 1, first or problem
    if skip and time.monotonic() - start > _SECONDS_TO_COUNT:
      logging.warning('%s: only %d records were tried', name, count)
      break
  if refused:
    logging.warning(
      '%s: skip_bad_records leaves out %d of %d records, which the generator'
      ' refuses; the first is %s',
      name,
      refused,
      count,
      first,
    )
  return refused


def _reason(error: Exception) -> str:
  if isinstance(error, UnicodeDecodeError):
    # TensorFlow quotes the record, which may be binary data.
    error = ValueError(error.object.decode('utf-8', errors='replace'))
  return errors.one_line(error)


def _records(
  name: str, reader: reader_params.Reader, every: bool
) -> Iterator[tuple[int, str, int, bytes]]:
  """Yields the index of the source, the file, the index in it, the record."""
  for source, pattern in enumerate(reader.patterns):
    form = params_checks.split_type(pattern)[0]
    if form not in record_files.FORMATS:
      continue
    paths = reader_params.files_of(name, pattern)
    if not every:
      paths = paths[:_FILES_TO_TRY]
    for path in paths:
      pieces = record_files.records(path, form, None)
      for index, piece in enumerate(pieces):
        if not every and index >= _RECORDS_TO_TRY // len(paths):
          break
        yield source, path, index, record_files.data_of(piece, form)
