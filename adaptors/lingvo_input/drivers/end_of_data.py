"""The error at the end of a Lingvo input's data.

A `for` loop and Python's `next` expect a StopIteration, loops that were written
for Pax TensorFlow's `OutOfRangeError`: it is both.
"""

import functools

from adaptors import lingvo_runtime


def error(reason: str) -> StopIteration:
  """Returns the error; `reason` is its message."""
  return _error_type()(None, None, reason)


def of(end: StopIteration) -> StopIteration:
  """Returns the error for a StopIteration: itself if it is one already."""
  return end if isinstance(end, _error_type()) else error('End of sequence')


@functools.cache
def _error_type() -> type[StopIteration]:
  tf = lingvo_runtime.module('tensorflow')
  # In this order the constructor is TensorFlow's.
  bases = (tf.errors.OutOfRangeError, StopIteration)
  return type('EndOfData', bases, {'__module__': __name__})
