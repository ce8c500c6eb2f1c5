"""Whether the data of a Lingvo input ever ends."""

import collections
import hashlib
import math
from collections.abc import Callable
from typing import Any

import jax
from absl import logging

from adaptors.lingvo_input.checks import reader_params
from adaptors.lingvo_input.drivers import cardinality
from pax_compat import errors
from pax_compat.input_core import example_rows, host_fields
from pax_compat.nested_map import NestedMap

# After this many repeated examples an input counts as repeating.
_EXAMPLES_TO_COMPARE = 256

# The number of examples after which a warning is logged, and an error raised.
_EXAMPLES_TO_WARN = 100_000
_EXAMPLES_AT_MOST = 10_000_000

# Ops that may end the data.
_MAY_END = ('Iterator', 'Queue', 'Reader', 'PyFunc', 'Barrier', 'RecordInput')


def ends(tf: Any, graph: Any, generator: Any) -> bool | None:
  """Returns whether a generator's batches end; None if unknown.

  Args:
    tf: TensorFlow.
    graph: of the batches.
    generator: of Lingvo.
  """
  graph_def = graph.as_graph_def()
  readers = reader_params.readers(tf, graph_def)
  if readers:
    return all(reader.ends() for reader in readers)
  nodes = list(reader_params.nodes_of(graph_def))
  permuted = [n for n in nodes if n.op == 'RandomPermutationSequence']
  if permuted:
    return not any(n.attr['repeat'].b for n in permuted)
  datasets = cardinality.ends(tf, graph_def, generator)
  if datasets:
    return None if None in datasets else all(datasets)
  if any(_may_end(tf, node.op) for node in nodes):
    return None
  return False  # It generates its examples.


def _may_end(tf, op: str) -> bool:
  # Nothing is known of ops that are not TensorFlow's own.
  return not hasattr(tf.raw_ops, op) or any(part in op for part in _MAY_END)


Guard = Callable[[NestedMap, int], None]


def no_guard(batch: NestedMap, count: int):
  """Accepts every batch."""
  del batch, count


def guard(
  name: str, advice: str, *, ends: bool | None, num_samples: int
) -> Guard:
  """Returns a check that raises if an epoch seems endless.

  It is called with each batch, leaves [n, ...], and the number of examples so
  far, including those of the batch.

  Args:
    name: of the input, in messages.
    advice: how to make it finite.
    ends: whether it is finite; None if unknown.
    num_samples: number of examples of `input.num_samples`; 0 for unknown.
  """
  if ends:
    return no_guard
  if not num_samples:
    return RepetitionGuard(name, advice)

  def check(batch, count):
    # A number that is half wrong is a slip; twice the number is a new epoch.
    if count > 2 * num_samples + example_rows.num_rows(batch):
      raise errors.UserError(
        f'{name} returned {count} examples, more than twice the {num_samples}'
        f' of input.num_samples: {advice}; or correct input.num_samples'
      )

  return check


class RepetitionGuard:
  """Detects that an input of unknown length never ends.

  It raises if the first examples have all been repeated, in any order, or if
  there are too many examples. It keeps digests of a few examples.
  """

  def __init__(self, name: str, advice: str):
    """Makes a guard of one epoch.

    Args:
      name: of the input, in messages.
      advice: how to make it finite.
    """
    self._name = name
    self._advice = f'{advice[0].upper()}{advice[1:]}'
    self._first = collections.Counter()
    self._missing = collections.Counter()
    self._seen = self._times = 0
    self._warn_at = _EXAMPLES_TO_WARN

  def __call__(self, batch: NestedMap, count: int):
    """Checks a batch.

    Args:
      batch: leaves [n, ...].
      count: number of examples so far, including those of this batch.

    Raises:
      UserError: the data seems endless.
    """
    leaves = jax.tree.leaves(batch)
    for row in range(leaves[0].shape[0]):
      digest = hashlib.blake2b(digest_size=16)
      for leaf in leaves:
        digest.update(host_fields.canonical_bytes(leaf[row : row + 1]))
      self._see(digest.digest(), count)
    self._check_count(count)

  def _see(self, digest: bytes, count: int):
    if self._seen < _EXAMPLES_TO_COMPARE:
      self._seen += 1
      self._first[digest] += 1
      self._missing[digest] += 1
      return
    if not self._missing.get(digest):
      return
    self._missing[digest] -= 1
    self._seen += 1
    if self._seen % _EXAMPLES_TO_COMPARE:
      return
    self._times += 1
    # If few examples differ, they may repeat by chance.
    if self._times >= math.ceil(_EXAMPLES_TO_COMPARE / len(self._first)):
      raise errors.UserError(
        f'{self._name} seems endless: before example {count} the first'
        f' {_EXAMPLES_TO_COMPARE} were all repeated. {self._advice}; if the'
        ' data really repeats itself, set input.num_samples'
      )
    self._missing = self._first.copy()

  def _check_count(self, count: int):
    if count >= _EXAMPLES_AT_MOST:
      raise errors.UserError(
        f'{self._name} returned {count} examples, and is not known to end.'
        f' {self._advice}; if there are that many, set input.num_samples'
      )
    if count >= self._warn_at:
      self._warn_at *= 2
      logging.warning(
        '%s returned %d examples, and is not known to end. %s',
        self._name,
        count,
        self._advice,
      )
