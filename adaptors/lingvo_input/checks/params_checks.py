"""Checks of the Params of an input, before its reader starts.

Lingvo's native readers end the process at a wrong pattern, and wait forever if
no record fits into a bucket. So the cheap checks come first.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import generator_kinds, vocabulary_checks
from adaptors.params import params_trees
from pax_compat import errors

# The formats of Lingvo's readers. A path without one is checked as well: some
# generators add it themselves.
_FILE_TYPES = ('', 'text', 'tfrecord', 'tfrecord_gzip')

# Reads a checkpoint that has the whole data.
_IN_CHECKPOINT = 'lingvo.core.base_input_generator.BaseTinyDatasetInput'

# The number of text lines searched for one that fits into a bucket.
_LINES_TO_SEARCH = 100_000


def check_input(name: str, params: Any):
  """Checks the Params of an input generator.

  Args:
    name: of the input, in messages.
    params: Lingvo Params; not changed.

  Raises:
    UserError: the reader would end the process, hang or fail.
  """
  _check_buckets(name, params)
  _check_repeat_count(name, params)
  _check_checkpoint(params)
  for pattern, paths in _file_patterns(name, params):
    if sum(_size(path) for path in paths) == 0:
      raise errors.UserError(
        f'{name}: the files of {pattern!r} are empty:'
        f' {errors.short_list(paths)}'
      )
  _check_lengths(name, params)
  vocabulary_checks.check_vocabularies(name, params)


def _check_checkpoint(params):
  """Checks the checkpoint with the data; its graph takes seconds to miss it."""
  if not params_trees.has_base(params.cls, _IN_CHECKPOINT):
    return
  tf = lingvo_runtime.module('tensorflow')
  try:
    tf.compat.v1.train.NewCheckpointReader(params.ckpt)
  except tf.errors.NotFoundError as error:
    raise errors.UserError(
      f'{params.cls.__name__} lacks a file: {error.message}'
    ) from error
  except tf.errors.OpError as error:
    logging.info('%s: %s', params.ckpt, error.message)  # The reader says more.


def _check_buckets(name, params):
  bounds = getattr(params, 'bucket_upper_bound', None)
  limits = getattr(params, 'bucket_batch_limit', None)
  if bounds is None or limits is None:
    return
  if len(bounds) != len(limits) or not bounds or sorted(bounds) != list(bounds):
    raise errors.UserError(
      f'{name}: bucket_upper_bound is {bounds} and bucket_batch_limit'
      f' {limits}; expected rising bounds and one limit for each'
    )


def _check_repeat_count(name, params):
  count = getattr(params, 'repeat_count', -1)
  if count != -1 and (not isinstance(count, int) or count < 1):
    raise errors.UserError(
      f'{name}: repeat_count is {count!r}; expected -1 (endless) or at least 1'
    )
  if count != -1 and is_weighted(params):
    raise errors.UserError(
      f'{name}: repeat_count is {count}, which needs the files in order, but'
      f' file_pattern mixes several by weight: {params.file_pattern!r}; give'
      ' one pattern, or several without weights'
    )


def is_weighted(params: Any) -> bool:
  """Returns whether an input mixes several sources by weight."""
  pattern = getattr(params, 'file_pattern', '')
  if isinstance(pattern, (list, tuple)):
    if any(not isinstance(p, str) for p in pattern):
      return True
  if getattr(params, 'weights', None):
    return True
  return any(is_weighted(child) for child in _children(params))


def _children(params) -> list[Any]:
  """Returns the Params of the data sources in those of an input."""
  sub = getattr(params, 'sub', None)
  children = [getattr(params, 'file_datasource', None)]
  children += sub if isinstance(sub, (list, tuple)) else [sub]
  return [child for child in children if hasattr(child, 'cls')]


def _file_patterns(name, params) -> Iterator[tuple[str, list[str]]]:
  """Yields each pattern of an input with the files that it matches."""
  for entry in _entries(params):
    yield from _patterns_of(name, entry)


def _patterns_of(name: str, entry: str) -> Iterator[tuple[str, list[str]]]:
  file_type, rest = split_type(entry)
  if file_type not in _FILE_TYPES:
    return
  if not rest.strip():
    raise errors.UserError(
      f'{name}: file_pattern is {entry!r}, which does not name a file'
    )
  for pattern in rest.split(','):
    paths = []
    for path in pattern.split(';'):
      paths.extend(_matches(name, pattern, path))
    yield pattern, paths


def files_of(name: str, entry: str) -> list[str]:
  """Returns the files of one reader; empty if it does not read files.

  Args:
    name: of the input, in messages.
    entry: such as `text:/a/b*,/a/c*`.

  Raises:
    UserError: a pattern matches no file.
  """
  return [path for _, paths in _patterns_of(name, entry) for path in paths]


def readers(params: Any) -> list[tuple[Any, list[str]]]:
  """Returns the Params that have file patterns, and an entry for each reader.

  That includes those of nested data sources. An entry is a string such as
  `text:/a/b*,/a/c*`.
  """
  found = []
  pattern = getattr(params, 'file_pattern', None) or ()
  prefix = getattr(params, 'file_pattern_prefix', '')
  if isinstance(pattern, str):
    pattern = [pattern]
  elif are_joined(params, pattern):
    pattern = [','.join(pattern)]
  entries = []
  for entry in pattern:
    entry = entry if isinstance(entry, str) else entry[0]
    if entry and prefix:
      entry = ','.join(f'{prefix.rstrip("/")}/{p}' for p in entry.split(','))
    entries.append(entry)
  if any(entries):
    found.append((params, entries))
  for child in _children(params):
    found += readers(child)
  return found


def _entries(params) -> list[str]:
  """Returns the file patterns of an input and its data sources."""
  found = readers(params)
  return [entry for _, entries in found for entry in entries if entry]


def are_joined(params: Any, patterns: Sequence[Any]) -> bool:
  """Returns whether a list of patterns becomes one string for one reader.

  The reader expects the file type at the start of that string only.
  """
  return (
    all(isinstance(p, str) for p in patterns)
    and not getattr(params, 'weights', None)
    and not generator_kinds.is_tf_data(params)
  )


def split_type(pattern: str) -> tuple[str, str]:
  """Splits `text:/a/b*` into `text` and `/a/b*`."""
  match = re.match(r'([^/:]*):(?!//)', pattern)
  return (match[1], pattern[match.end() :]) if match else ('', pattern)


def _matches(name, pattern: str, part: str) -> list[str]:
  tf = lingvo_runtime.module('tensorflow')
  path, at, shards = part.partition('@')
  glob = part
  if at:
    if shards != '*' and not (shards.isdigit() and len(shards) <= 5):
      raise errors.UserError(
        f'{name}: {part!r} is not a sharded pattern; expected PATH@N of at most'
        ' five digits, or PATH@*'
      )
    count = '?????' if shards == '*' else f'{int(shards):05d}'
    glob = f'{path}-?????-of-{count}'
  paths = sorted(tf.io.gfile.glob(glob)) if glob else []
  folders = [path for path in paths if tf.io.gfile.isdir(path)]
  if folders:
    raise errors.UserError(
      f'{name}: {part!r}, of file_pattern {pattern!r}, matches the folder'
      f' {folders[0]}; expected files only, such as {folders[0]}/*'
    )
  if not paths:
    looked = f' (as {glob!r})' if glob != part else ''
    raise errors.UserError(
      f'{name}: no file matches {part!r}{looked}, of file_pattern {pattern!r}'
    )
  return paths


def _size(path: str) -> int:
  tf = lingvo_runtime.module('tensorflow')
  return tf.io.gfile.stat(path).length


def _check_lengths(name, params):
  """Raises if no line of a text input can fit into the largest bucket.

  A bucket key counts words or smaller pieces, so it is at least the number of
  words: a line with more words than the largest bound is always dropped.
  """
  bounds = getattr(params, 'bucket_upper_bound', None)
  entries = _entries(params)
  if not bounds or any(split_type(e)[0] != 'text' for e in entries):
    return
  shortest, complete = None, True
  for words in _line_words(name, params):
    if words is None:
      complete = False
    elif words <= bounds[-1]:
      return
    else:
      shortest = words if shortest is None else min(shortest, words)
  if shortest is None:
    return
  problem = (
    f'{name}: the largest bucket_upper_bound is {bounds[-1]}, but the shortest'
    f' line has {shortest} words'
  )
  if complete:
    raise errors.UserError(f'{problem}; the reader would drop every line')
  logging.warning('%s, of the first %d', problem, _LINES_TO_SEARCH)


def _line_words(name, params) -> Iterator[int | None]:
  """Yields the number of words of each line, and None at the search limit."""
  tf = lingvo_runtime.module('tensorflow')
  left = _LINES_TO_SEARCH
  for _, paths in _file_patterns(name, params):
    for path in paths:
      with tf.io.gfile.GFile(path, 'rb') as f:
        for line in f:
          if left == 0:
            yield None
            return
          left -= 1
          yield len(line.split())
