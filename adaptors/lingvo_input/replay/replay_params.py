"""Params with which a generator's order is reproducible.

Lingvo's shuffling reader is not: even with a fixed seed, a buffer of one record
and one thread, the order of the files in the second epoch depends on how fast
batches are taken. Its sequential reader is, and repeats endlessly.
"""

import hashlib
import os
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import generator_kinds, params_checks
from pax_compat import errors

# The Params that, besides the files, decide which examples are in which batch.
_ORDERING = (
  'batch_size',
  'bucket_adjust_every_n',
  'bucket_batch_limit',
  'bucket_upper_bound',
  'flush_every_n',
  'num_samples',
  'random_seed',
  'repeat_count',
)


def prepare(name: str, params: Any, *, seed: int, num_hosts: int):
  """Sets the Params of a generator so that its order is reproducible.

  Args:
    name: of the input, in messages.
    params: Lingvo Params; changed.
    seed: the random seed; not 0.
    num_hosts: number of hosts that share its batches.

  Raises:
    UserError: its order cannot be made reproducible.
  """
  _refuse(name, params, num_hosts)
  if 'num_batcher_threads' in params:
    params.num_batcher_threads = 1
  if params.random_seed is None:
    params.random_seed = seed
  logging.info(
    '%s: replay: every host reads all records, in one thread and in the order'
    ' of the files, without shuffling; the random seed is %d',
    name,
    seed,
  )


def _mixes_records(params) -> bool:
  """Whether one reader mixes the records of several patterns."""
  for node, entries in params_checks.readers(params):
    mixing = (
      getattr(node, 'weights', None)
      or getattr(node, 'use_within_batch_mixing', False)
      or getattr(node, 'batch_mixing_partition_boundaries', None)
    )
    if mixing and len(entries) > 1:
      return True
  return False


def _refuse(name, params, num_hosts):
  if generator_kinds.is_tf_data(params):
    raise errors.UserError(
      f'{name}: replay is set, but it reads through tf.data, which Lingvo runs'
      ' in many threads, in the order in which they finish;'
      ' expected a generator that reads records, or replay=False'
    )
  if _mixes_records(params):
    raise errors.UserError(
      f'{name}: replay is set, but within its batches records of several'
      ' patterns are mixed, which only the shuffling reader does, in an order'
      ' that depends on timing; expected one pattern, a mixture of whole'
      ' batches (use_within_batch_mixing=False), or replay=False'
    )
  if num_hosts > 1 and _has_curriculum(
    getattr(params, 'file_datasource', None)
  ):
    raise errors.UserError(
      f'{name}: replay is set with {num_hosts} hosts, and a'
      ' CurriculumDataSource goes by steps, of which there are fewer with more'
      ' hosts; expected one host, or replay=False'
    )


def _has_curriculum(source) -> bool:
  if not hasattr(source, 'cls'):
    return False
  sources = lingvo_runtime.module('lingvo.core.datasource')
  sub = getattr(source, 'sub', None)
  subs = sub if isinstance(sub, list | tuple) else [sub]
  return issubclass(source.cls, sources.CurriculumDataSource) or any(
    map(_has_curriculum, subs)
  )


def metadata(name: str, params: Any, *, seed: int) -> dict[str, Any]:
  """Returns what the order of the batches depends on, as JSON.

  Files are compared by name and size, not by folder, if the order of their
  paths is the same.

  Args:
    name: of the input, in messages.
    params: Lingvo Params, as `prepare` left them.
    seed: as of `prepare`.
  """
  found = {k: _plain(getattr(params, k, None)) for k in _ORDERING}
  digest = hashlib.blake2b(digest_size=8)
  count = 0
  gfile = lingvo_runtime.module('tensorflow').io.gfile
  for _, entries in params_checks.readers(params):
    for entry in filter(None, entries):
      # The reader sorts all of them.
      for path in sorted(params_checks.files_of(name, entry)):
        size = gfile.stat(path).length
        digest.update(f'{os.path.basename(path)}:{size},'.encode())
        count += 1
      digest.update(b';')
  found['files'] = f'{count} files, {digest.hexdigest()}'
  found['generator'] = params.cls.__name__
  found['seed'] = seed
  return {k: v for k, v in found.items() if v is not None}


def _plain(value):
  return list(value) if isinstance(value, tuple) else value
