"""Samples of classes that TensorFlow draws, so that both sides have them."""

from adaptors import lingvo_runtime


def sampler(num_sampled: int, num_classes: int, seed: int):
  """Returns the op of TensorFlow that draws: (classes, expected counts)."""
  tf = lingvo_runtime.module('tensorflow')
  classes, _, counts = tf.random.log_uniform_candidate_sampler(
    tf.zeros([1, 1], tf.int64),
    num_true=1,
    num_sampled=num_sampled,
    unique=True,
    range_max=num_classes,
    seed=seed,
  )
  return classes, counts
