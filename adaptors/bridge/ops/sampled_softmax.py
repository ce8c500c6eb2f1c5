"""TensorFlow's candidate samplers, built from ops that XLA compiles.

Sampled classes differ from TensorFlow's for the same seed. Their distribution,
and the expected counts that losses correct for, are the same.

Shapes: B batch, T true classes of an example, S sampled classes, V classes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.ops import random_ops
from pax_compat import errors

_SAMPLING = 'tensorflow.python.ops.gen_candidate_sampling_ops.'
_SPARSE_TO_DENSE = 'tensorflow.python.ops.gen_sparse_ops.sparse_to_dense'


class Candidates(NamedTuple):
  """The outputs of a sampler.

  Attributes:
    sampled_candidates: [S], int64, classes.
    true_expected_count: [B, T], float32, expected count of each true class in a
      sample.
    sampled_expected_count: [S], float32, expected counts of sampled classes.
  """

  sampled_candidates: Any
  true_expected_count: Any
  sampled_expected_count: Any


class Hits(NamedTuple):
  """Accidental hits: sampled classes that are true classes of an example.

  TensorFlow returns a dynamic number of hits, which XLA does not support. This
  has all pairs of an example and a sampled class; pairs that are not hits have
  weight 0.

  Attributes:
    indices: [B * S], int32, of examples.
    ids: [B * S], int64, positions in the sample.
    weights: [B * S], float32: the most negative number for hits, else 0.
  """

  indices: Any
  ids: Any
  weights: Any


class _Distribution(NamedTuple):
  """A distribution of classes.

  Attributes:
    draw: (seed, number) -> int64 [number] classes.
    probability: classes of any shape -> float64 probabilities.
  """

  draw: Callable
  probability: Callable


def replacements(seeds: random_ops.Seeds) -> dict[str, Callable]:
  """Returns the replacements of TensorFlow's candidate samplers."""

  def sampler(
    distribution_of,
    _,
    true_classes,
    num_true,
    num_sampled,
    unique,
    range_max,
    *,
    seed=0,
    seed2=0,
    name=None,
    **fields,
  ):
    return _candidates(
      seeds,
      distribution_of(range_max, **fields),
      true_classes,
      num_sampled,
      unique,
      range_max,
    )

  return {
    _SAMPLING + 'log_uniform_candidate_sampler': functools.partial(
      sampler, _log_uniform
    ),
    _SAMPLING + 'uniform_candidate_sampler': functools.partial(
      sampler, _uniform
    ),
    _SAMPLING + 'fixed_unigram_candidate_sampler': functools.partial(
      sampler, _fixed_unigram
    ),
    _SAMPLING + 'all_candidate_sampler': _all_candidates,
    _SAMPLING + 'learned_unigram_candidate_sampler': _refuse_learned,
    _SAMPLING + 'thread_unsafe_unigram_candidate_sampler': _refuse_learned,
    **_hits_replacements(),
  }


def _candidates(
  seeds, distribution, true_classes, num_sampled, unique, num_classes
):
  """Returns `Candidates`."""
  tf = lingvo_runtime.module('tensorflow')
  if unique and num_sampled > num_classes:
    raise errors.UserError(
      f'a sample of {num_sampled} different classes of {num_classes};'
      f' expected at most {num_classes}'
    )
  if unique:
    classes, num_tries = _different(
      distribution, seeds.next(), num_sampled, num_classes
    )
  else:
    classes = distribution.draw(seeds.next(), num_sampled)
    num_tries = tf.constant(num_sampled)

  def expected_count(of):
    probability = distribution.probability(of)
    tries = tf.cast(num_tries, tf.float64)
    # TensorFlow uses the first formula if no class was drawn twice.
    count = tf.where(
      num_tries == num_sampled,
      tries * probability,
      -tf.math.expm1(tries * tf.math.log1p(-probability)),
    )
    return tf.cast(count, tf.float32)

  return Candidates(
    classes, expected_count(true_classes), expected_count(classes)
  )


def _different(distribution, seed, num_sampled, num_classes):
  """Draws classes until `num_sampled` different ones are found.

  Returns:
    Classes [S], int64, in the order of their first draws, and the number of
    draws, int32.
  """
  tf = lingvo_runtime.module('tensorflow')
  # Most samples need several times as many draws as they have classes.
  size = 2 * num_sampled

  def more(i, first, found, classes, tries):
    drawn = distribution.draw(seed + tf.stack([0, i]), size)
    index = i * size + tf.range(size)
    first = tf.tensor_scatter_nd_min(first, drawn[:, None], index)
    is_new = tf.gather(first, drawn) == index
    rank = found + tf.cumsum(tf.cast(is_new, tf.int32)) - 1
    # Repeated and excess classes are written behind the last position.
    position = tf.where(is_new, tf.minimum(rank, num_sampled), num_sampled)
    classes = tf.tensor_scatter_nd_update(classes, position[:, None], drawn)
    is_last = is_new & (rank == num_sampled - 1)
    last = i * size + tf.argmax(is_last, output_type=tf.int32) + 1
    tries = tf.where(tf.reduce_any(is_last), last, tries)
    return i + 1, first, rank[-1] + 1, classes, tries

  *_, classes, tries = tf.while_loop(
    lambda i, first, found, *_: found < num_sampled,
    more,
    (
      tf.constant(0),
      tf.fill([num_classes], tf.int32.max),
      tf.constant(0),
      tf.zeros([num_sampled + 1], tf.int64),
      tf.constant(0),
    ),
  )
  return classes[:num_sampled], tries


def _uniform_numbers(seed, size):
  """Returns numbers in [0, 1): float64, [size]."""
  tf = lingvo_runtime.module('tensorflow')
  return tf.random.stateless_uniform([size], seed, dtype=tf.float64)


def _log_uniform(num_classes: int) -> _Distribution:
  """Class k has probability log((k + 2) / (k + 1)) / log(V + 1)."""
  tf = lingvo_runtime.module('tensorflow')
  scale = math.log(num_classes + 1)

  def draw(seed, size):
    drawn = tf.cast(tf.exp(_uniform_numbers(seed, size) * scale), tf.int64) - 1
    return tf.clip_by_value(drawn, 0, num_classes - 1)

  def probability(classes):
    return tf.math.log1p(1 / (tf.cast(classes, tf.float64) + 1)) / scale

  return _Distribution(draw, probability)


def _uniform(num_classes: int) -> _Distribution:
  """All classes have the same probability."""
  tf = lingvo_runtime.module('tensorflow')

  def draw(seed, size):
    return tf.random.stateless_uniform([size], seed, 0, num_classes, tf.int64)

  def probability(classes):
    return tf.fill(tf.shape(classes), tf.constant(1 / num_classes, tf.float64))

  return _Distribution(draw, probability)


def _fixed_unigram(num_classes: int, **fields) -> _Distribution:
  """Classes have probabilities proportional to given weights."""
  tf = lingvo_runtime.module('tensorflow')
  weights = _unigram_weights(num_classes, **fields)
  probabilities = weights / weights.sum()
  below = np.cumsum(probabilities)

  def draw(seed, size):
    numbers = _uniform_numbers(seed, size) * below[-1]
    drawn = tf.searchsorted(below, numbers, side='right', out_type=tf.int64)
    return tf.minimum(drawn, weights.size - 1)

  def probability(classes):
    return tf.gather(probabilities, classes)

  return _Distribution(draw, probability)


def _unigram_weights(
  range_max,
  vocab_file='',
  distortion=1.0,
  num_reserved_ids=0,
  num_shards=1,
  shard=0,
  unigrams=(),
) -> np.ndarray:
  """Returns the weights of TensorFlow's fixed unigram sampler.

  Raises:
    UserError: the numbers of weights and classes differ.
  """
  counts = list(unigrams)
  if vocab_file:
    tf = lingvo_runtime.module('tensorflow')
    with tf.io.gfile.GFile(vocab_file) as f:
      counts = [float(line.rsplit(',', 1)[-1]) for line in f if line.strip()]
  weights = np.array(counts, np.float64) ** distortion
  weights = np.concatenate([np.zeros(num_reserved_ids), weights])
  weights = weights[shard::num_shards]
  if weights.size != range_max:
    raise errors.UserError(
      f'a unigram sampler has weights of {weights.size} classes; expected'
      f' range_max, {range_max}'
    )
  return weights


def _all_candidates(_, true_classes, num_true, num_sampled, unique, **k):
  """Returns the first classes, each once."""
  del num_true, unique, k
  tf = lingvo_runtime.module('tensorflow')
  return Candidates(
    tf.range(num_sampled, dtype=tf.int64),
    tf.ones(tf.shape(true_classes)),
    tf.ones([num_sampled]),
  )


def _refuse_learned(*args, **kwargs):
  raise errors.UserError(
    'a unigram candidate sampler that learns its distribution keeps counts that'
    ' are not variables of the model, and cannot be bridged; expected'
    ' tf.random.fixed_unigram_candidate_sampler with known counts, or'
    ' tf.random.log_uniform_candidate_sampler'
  )


def _hits_replacements() -> dict[str, Callable]:
  """Returns the replacements for finding hits and for making them dense."""
  tf = lingvo_runtime.module('tensorflow')
  dense_by_weights = {}

  def compute_accidental_hits(
    _, true_classes, sampled_candidates, num_true, **k
  ):
    del num_true, k
    is_hit = tf.reduce_any(
      true_classes[:, :, None] == sampled_candidates[None, None, :], 1
    )
    weights = tf.where(is_hit, -np.finfo(np.float32).max, np.float32(0))
    batch_size, num_sampled = tf.unstack(tf.shape(is_hit))
    examples = tf.repeat(tf.range(batch_size), num_sampled)
    positions = tf.tile(
      tf.range(tf.cast(num_sampled, tf.int64)), batch_size[None]
    )
    flat = tf.reshape(weights, [-1])
    dense_by_weights[flat.ref()] = weights
    return Hits(examples, positions, flat)

  def sparse_to_dense(
    original, sparse_indices, output_shape, sparse_values, *args, **kwargs
  ):
    weights = sparse_values
    if tf.is_tensor(weights) and not tf.executing_eagerly():
      weights = weights.op.inputs[0] if weights.op.type == 'Cast' else weights
    if tf.is_tensor(weights) and weights.ref() in dense_by_weights:
      # Already dense, which avoids a slow scatter.
      return tf.cast(dense_by_weights[weights.ref()], sparse_values.dtype)
    return original(
      sparse_indices, output_shape, sparse_values, *args, **kwargs
    )

  return {
    _SAMPLING + 'compute_accidental_hits': compute_accidental_hits,
    _SPARSE_TO_DENSE: sparse_to_dense,
  }
