"""Fixed numbers in place of TensorFlow's random ones.

A comparison with Lingvo needs the same numbers on both sides, whatever layer or
op draws them. Each replaced op returns numbers that depend on nothing but its
shape, so masks, noise and samples are equal on both sides and in all steps.

Shapes: B batch, S sampled classes, V classes.
"""

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any

from adaptors import lingvo_runtime
from pax_compat.config_core import context_values

_RANDOM = 'tensorflow.python.ops.gen_random_ops.'
_STATELESS = 'tensorflow.python.ops.gen_stateless_random_ops.'
_STATELESS_V2 = 'tensorflow.python.ops.gen_stateless_random_ops_v2.'
_SAMPLING = 'tensorflow.python.ops.gen_candidate_sampling_ops.'
# The golden ratio times 2**32, as int32: its multiples are evenly spread.
_SPREAD = -1640531535
_BITS = 23  # Of a float's fraction: these numbers are exact everywhere.

_is_on = contextvars.ContextVar('fixed random numbers', default=False)


def for_bridged() -> contextlib.AbstractContextManager:
  """Bridged tasks and layers traced within get fixed numbers."""
  return context_values.set_within(_is_on, True)


def of_bridged() -> dict[str, Callable]:
  """Returns the replacements within `for_bridged`, else none."""
  return {**replacements(), **samplers()} if _is_on.get() else {}


def replacements() -> dict[str, Callable]:
  """Returns replacements of random ops, for `function_replacing.replaced`."""
  tf = lingvo_runtime.module('tensorflow')

  def uniform(_, shape, *args, dtype=tf.float32, **kwargs):
    dtype = next((a for a in args if isinstance(a, tf.DType)), dtype)
    return _uniform(shape, dtype)

  def normal(_, shape, *args, dtype=tf.float32, **kwargs):
    dtype = next((a for a in args if isinstance(a, tf.DType)), dtype)
    # Of the variance 1.
    return (_uniform(shape, dtype) - 0.5) * tf.cast(12**0.5, dtype)

  def uniform_int(_, shape, *args, minval=None, maxval=None, **kwargs):
    if minval is None:
      *_, minval, maxval = args
    return _integers(shape, minval, maxval)

  def stateful_uniform_int(_, shape, minval, maxval, *args, **kwargs):
    return _integers(shape, minval, maxval)

  def multinomial(
    _, logits, num_samples, *args, output_dtype=tf.int64, **kwargs
  ):
    logits = tf.convert_to_tensor(logits)
    noisy = logits + _uniform(tf.shape(logits), logits.dtype)
    best = tf.argmax(noisy, -1, output_type=output_dtype)
    return tf.tile(best[:, None], [1, num_samples])

  def shuffle(_, value, *args, **kwargs):
    value = tf.convert_to_tensor(value)
    return tf.gather(value, tf.argsort(_words(tf.shape(value)[:1])))

  return {
    _RANDOM + 'random_uniform': uniform,
    _RANDOM + 'random_uniform_int': stateful_uniform_int,
    _RANDOM + 'random_standard_normal': normal,
    _RANDOM + 'truncated_normal': normal,
    _RANDOM + 'multinomial': multinomial,
    _RANDOM + 'random_shuffle': shuffle,
    _STATELESS + 'stateless_random_uniform': uniform,
    _STATELESS + 'stateless_random_normal': normal,
    _STATELESS + 'stateless_truncated_normal': normal,
    _STATELESS + 'stateless_random_uniform_int': uniform_int,
    _STATELESS + 'stateless_multinomial': multinomial,
    _STATELESS_V2 + 'stateless_random_uniform_v2': uniform,
    _STATELESS_V2 + 'stateless_random_normal_v2': normal,
    _STATELESS_V2 + 'stateless_truncated_normal_v2': normal,
    _STATELESS_V2 + 'stateless_random_uniform_int_v2': uniform_int,
    _STATELESS_V2 + 'stateless_shuffle': shuffle,
  }


def samplers() -> dict[str, Callable]:
  """Returns replacements of candidate samplers: they draw the first classes.

  All expected counts are 1.
  """
  tf = lingvo_runtime.module('tensorflow')

  def sampler(_, true_classes, num_true, num_sampled, *args, **kwargs):
    counts = tf.ones(tf.shape(true_classes)), tf.ones([num_sampled])
    return tf.range(num_sampled, dtype=tf.int64), *counts

  kinds = 'log_uniform', 'uniform', 'fixed_unigram'
  return {f'{_SAMPLING}{kind}_candidate_sampler': sampler for kind in kinds}


def _words(shape: Any) -> Any:
  """Returns integers in [0, 2**23), flat."""
  tf = lingvo_runtime.module('tensorflow')
  size = tf.reduce_prod(tf.cast(shape, tf.int32))
  spread = tf.range(1, size + 1) * _SPREAD
  words = tf.bitwise.right_shift(spread, 31 - _BITS)
  return tf.bitwise.bitwise_and(words, 2**_BITS - 1)


def _uniform(shape: Any, dtype: Any) -> Any:
  """Returns numbers in [0, 1)."""
  tf = lingvo_runtime.module('tensorflow')
  fractions = tf.cast(_words(shape), tf.float32) * 2.0**-_BITS
  return tf.cast(tf.reshape(fractions, shape), dtype)


def _integers(shape: Any, minval: Any, maxval: Any) -> Any:
  """Returns integers in [minval, maxval)."""
  tf = lingvo_runtime.module('tensorflow')
  minval = tf.convert_to_tensor(minval)
  words = tf.cast(tf.reshape(_words(shape), shape), minval.dtype)
  return minval + words % (tf.cast(maxval, minval.dtype) - minval)
