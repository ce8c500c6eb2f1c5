"""Tries the first records of a reader before it starts.

A reader silently drops records that have no bucket or make its processor fail.
If that is every record, it waits forever. And it ends the process if examples
of a batch differ in shape.
"""

import time
from collections.abc import Iterator
from typing import Any

from absl import logging

from adaptors.lingvo_input.checks import params_checks, reader_params
from pax_compat import errors

# The number of examples compared if shapes may differ, and the time for it.
_EXAMPLES_TO_COMPARE = 512
_SECONDS_TO_COMPARE = 0.3

# The number of records searched for one that fits, and the time for it.
_RECORDS_TO_SEARCH = 20_000
_SECONDS_TO_SEARCH = 60.0


class Probe:
  """The processor of a reader, to be run on single records.

  Attributes:
    reader: the reader.
  """

  def __init__(self, *, tf: Any, name: str, reader: reader_params.Reader):
    """Adds the processor to the reader's graph.

    Args:
      tf: TensorFlow.
      name: of the input, in messages.
      reader: as found in the graph.
    """
    self._tf = tf
    self._name = name
    self.reader = reader
    v1 = tf.compat.v1
    graph = v1.get_default_graph()
    processor = next(
      f
      for f in graph.as_graph_def().library.function
      if f.signature.name == reader.processor
    )
    self._arguments = [
      v1.placeholder(a.type, []) for a in processor.signature.input_arg
    ]
    # By its name, as readers do.
    function = v1.NameAttrList(name=reader.processor)
    made = tf.raw_ops.StatefulPartitionedCall(
      args=self._arguments,
      Tout=[a.type for a in processor.signature.output_arg],
      f=function,
    )
    self._key = made[-1]
    self._shapes = [tf.shape(x) for x in made[:-1]]
    static = all(x.shape.is_fully_defined() for x in made[:-1])
    alone = max(reader.limits) == 1
    same = static or reader.padded or alone
    self._enough = 1 if same else _EXAMPLES_TO_COMPARE

  def run(self, session: Any):
    """Tries records until one fits.

    Raises:
      UserError: the reader would not return any batch, or end the process.
    """
    seen = _Seen(self._name, self.reader)
    start, found = time.monotonic(), 0.0
    for source, path, record in self._records():
      try:
        if isinstance(record, Exception):
          raise record
        key, shapes = self.processed(session, source, record)
      except Exception as e:  # noqa: BLE001 (the processor is the user's code)
        seen.add_error(path, e)
      else:
        seen.add(path, key, shapes)
      now = time.monotonic()
      if seen.fitting:
        found = found or now
        late = now - found > _SECONDS_TO_COMPARE
        if late or seen.fitting >= self._enough:
          return
      elif seen.count >= _RECORDS_TO_SEARCH or now - start > _SECONDS_TO_SEARCH:
        logging.warning('%s, of the first %d', seen.nothing_fits(), seen.count)
        return
    if seen.count and not seen.fitting:
      raise errors.UserError(seen.nothing_fits())

  def processed(self, session: Any, source: int, record: bytes) -> tuple:
    """Returns the bucket key of a record, and the shapes of its tensors."""
    values = [source, record][-len(self._arguments) :]
    return session.run(
      [self._key, self._shapes], dict(zip(self._arguments, values, strict=True))
    )

  def _records(self) -> Iterator[tuple[int, str, bytes | Exception]]:
    """Yields the index of the source, the file and each record.

    If a file is damaged, the last entry is an error in place of a record.
    """
    for source, pattern in enumerate(self.reader.patterns):
      form = params_checks.split_type(pattern)[0]
      if form == 'iota':
        yield from ((source, pattern, b'%010d' % i) for i in range(1000))
      for path in reader_params.files_of(self._name, pattern):
        for record in _records_of(self._tf, form, path):
          yield source, path, record


class _Seen:
  """The results of the records so far."""

  def __init__(self, name: str, reader: reader_params.Reader):
    self._name = name
    self._reader = reader
    self._errors = 0
    self._first_error = ''
    self._keys = []
    self._shapes = {}
    self.count = self.fitting = 0

  def add_error(self, path: str, error: Exception):
    self.count += 1
    self._errors += 1
    if not self._first_error:
      self._first_error = f'{path}: {errors.one_line(error)}'

  def add(self, path: str, key, shapes):
    self.count += 1
    if key.ndim:
      raise errors.UserError(
        f'{self._name}: the bucket key of a record has the shape {key.shape};'
        ' expected a single number'
      )
    key = int(key)
    bounds = self._reader.bounds
    self._keys = [min([key, *self._keys]), max([key, *self._keys])]
    if not 0 <= key <= bounds[-1]:
      return
    self.fitting += 1
    bucket = next(i for i, bound in enumerate(bounds) if key <= bound)
    shapes = [tuple(map(int, s)) for s in shapes]
    first = self._shapes.setdefault(bucket, (path, shapes))
    if not self._reader.padded and first[1] != shapes:
      raise errors.UserError(
        f'{self._name}: a record of {first[0]} becomes tensors of the shapes'
        f' {first[1]}, and one of {path} with a bucket key of the same bucket'
        f' {shapes}; expected the same shapes, or dynamic padding'
      )

  def nothing_fits(self) -> str:
    """Returns a message about why no record fits."""
    reasons = []
    if self._keys:
      low, high = self._keys
      reasons.append(
        f'{self.count - self._errors} have bucket keys from {low} to {high},'
        f' with {self._reader.bounds[-1]} as the largest bucket_upper_bound'
      )
    if self._errors:
      reasons.append(
        f'the generator fails at {self._errors}, first at a record of'
        f' {self._first_error}'
      )
    return (
      f'{self._name}: the reader would drop every record and wait forever: of'
      f' {self.count}, {"; and ".join(reasons)}'
    )


def _records_of(tf, form: str, path: str) -> Iterator[bytes | Exception]:
  if form == 'text':
    with tf.io.gfile.GFile(path, 'rb') as f:
      for line in f:
        yield line.rstrip(b'\r\n')
    return
  kind = 'GZIP' if form == 'tfrecord_gzip' else ''
  records = tf.data.TFRecordDataset(path, compression_type=kind)
  try:
    yield from records.as_numpy_iterator()
  except tf.errors.OpError as e:
    yield e
