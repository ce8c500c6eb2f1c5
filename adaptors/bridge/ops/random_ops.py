"""Random numbers of a Lingvo task that depend on one seed only.

XLA compiles TensorFlow's stateful random ops to unseeded ones. They are
replaced by stateless ops, with seeds computed from the seed of the run, the
number of the call, and the iterations of surrounding loops. Lingvo's step
seeds, which seed stateless ops of its layers, start from the seed of the run.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import errors

# Odd 32-bit numbers. Multiples by small factors are far apart.
_SPREAD = (0x9E3779B1, 0x85EBCA77)

_RANDOM = 'tensorflow.python.ops.gen_random_ops.'
_STATEFUL = 'tensorflow.python.ops.gen_stateful_random_ops.'
# Stateful random ops that XLA compiles without a seed, and that have no
# replacement.
_REFUSED = (
  _RANDOM + 'parameterized_truncated_normal',
  _STATEFUL + 'stateful_standard_normal',
  _STATEFUL + 'stateful_standard_normal_v2',
  _STATEFUL + 'stateful_truncated_normal',
  _STATEFUL + 'stateful_uniform',
  _STATEFUL + 'stateful_uniform_full_int',
  _STATEFUL + 'stateful_uniform_int',
)

_PY_UTILS = 'lingvo.core.py_utils.'


class Seeds:
  """The seeds of one trace.

  They are computed from Lingvo's step seed, which grows with each call. Lingvo
  passes it to recurrent cells and to rematerialized layers: numbers differ
  between time steps, and are the same in the recomputation. TensorFlow's loops
  do not pass it on, so the iteration number is added.

  Attributes:
    is_given: whether there is a seed of the run. Without it Lingvo's step seeds
      start from a fixed one.
  """

  def __init__(self, seed: Any | None):
    """Starts in the current graph.

    Args:
      seed: int32 [2], a tensor of the current graph; or None.
    """
    self.is_given = seed is not None
    self._seed = seed
    self._graph = _current_graph()
    self._num_starts = 0

  def next(self) -> Any:
    """Returns the seed of the next call: int32 [2]."""
    tf = lingvo_runtime.module('tensorflow')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    graph, counters = self._surroundings()
    with graph.as_default() if graph else contextlib.nullcontext():
      step = py_utils.GetGlobalStep()
      step = tf.cast(0 if step is None else step, tf.int32)
      seed = py_utils.GetIncStepSeed()
      low, high = tf.cast(seed, tf.int32), tf.cast(seed // 2**32, tf.int32)
      # Different from the seeds that Lingvo computes from the same numbers.
      seed = tf.bitwise.bitwise_xor(tf.stack([low, high]), _constant(0))
      seed += step * _constant(1)
    for depth, counter in enumerate(counters):
      # A different factor for each depth, so that nested loops do not collide.
      seed += (tf.cast(counter, tf.int32) + 1) * _constant(depth + 2)
    return seed

  def step_seed(self, seed: int) -> Any:
    """Returns the initial step seed of Lingvo in the current graph: int64.

    Args:
      seed: the initial step seed that Lingvo would use.
    """
    tf = lingvo_runtime.module('tensorflow')
    graph = _current_graph()
    self._num_starts += 1
    apart = int(seed) + (self._num_starts << 40)
    if graph is self._graph:
      words = self._seed
    elif _is_control_flow(graph):
      words = self.next()
    else:
      # Lingvo's functions must not capture outer tensors.
      return tf.constant(apart, tf.int64)
    first, second = tf.unstack(tf.cast(words, tf.int64))
    return tf.bitwise.bitwise_and(first * 2**31 + second + apart, 2**62 - 1)

  def _surroundings(self) -> tuple[Any, list[Any]]:
    """Returns the enclosing graph with a seed, and loop counters up to it."""
    graph, counters = _current_graph(), []
    while graph is not self._graph and not _has_step_seed(graph):
      if _is_control_flow(graph, 'WhileBodyFuncGraph'):
        # The first argument of a loop body is the iteration number.
        counters.append(graph.get_operations()[0].outputs[0])
      graph = graph.outer_graph
    return graph, counters


def replacements(seeds: Seeds) -> dict[str, Callable]:
  """Returns the replacements of TensorFlow's stateful random ops."""
  tf = lingvo_runtime.module('tensorflow')
  stateless = tf.random

  def random_uniform(_, shape, dtype, seed=0, seed2=0, name=None):
    return stateless.stateless_uniform(
      shape, seeds.next(), dtype=dtype, name=name
    )

  def random_uniform_int(_, shape, minval, maxval, seed=0, seed2=0, name=None):
    minval = tf.convert_to_tensor(minval)
    return stateless.stateless_uniform(
      shape, seeds.next(), minval, maxval, minval.dtype, name
    )

  def random_standard_normal(_, shape, dtype, seed=0, seed2=0, name=None):
    return stateless.stateless_normal(
      shape, seeds.next(), dtype=dtype, name=name
    )

  def truncated_normal(_, shape, dtype, seed=0, seed2=0, name=None):
    return stateless.stateless_truncated_normal(
      shape, seeds.next(), dtype=dtype, name=name
    )

  def multinomial(
    _, logits, num_samples, seed=0, seed2=0, output_dtype=None, name=None
  ):
    return stateless.stateless_categorical(
      logits, num_samples, seeds.next(), output_dtype or tf.int64, name
    )

  def random_shuffle(_, value, seed=0, seed2=0, name=None):
    value = tf.convert_to_tensor(value)
    keys = stateless.stateless_uniform(
      tf.shape(value)[:1], seeds.next(), None, None, tf.int32
    )
    return tf.gather(value, tf.argsort(keys), name=name)

  def rng_read_and_skip(_, resource, alg, delta, name=None):
    # The state of a `tf.random.Generator`: a two-word counter and a key.
    return stateless.stateless_uniform(
      [3], seeds.next(), None, None, tf.int64, name
    )

  return {
    _RANDOM + 'random_uniform': random_uniform,
    _RANDOM + 'random_uniform_int': random_uniform_int,
    _RANDOM + 'random_standard_normal': random_standard_normal,
    _RANDOM + 'truncated_normal': truncated_normal,
    _RANDOM + 'multinomial': multinomial,
    _RANDOM + 'random_shuffle': random_shuffle,
    _STATEFUL + 'rng_read_and_skip': rng_read_and_skip,
    **{name: functools.partial(_refuse, name) for name in _REFUSED},
  }


def _refuse(name: str, *args, **kwargs):
  raise errors.UserError(
    f'random numbers of {name.rpartition(".")[2]} would not follow from the'
    ' seed of the run; expected tf.random.uniform, normal, truncated_normal,'
    ' categorical or shuffle'
  )


def lingvo_replacements(seeds: Seeds) -> dict[str, Callable]:
  """Returns replacements that seed Lingvo's step seeds by the run's seed."""
  if not seeds.is_given:
    return {}
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  lingvo_runtime.module('lingvo.core.gpipe')

  def reset_step_seed(original, seed=0):
    original(seed if tf.is_tensor(seed) else seeds.step_seed(seed))

  def gpipe_step_seed_pair(original, *args, **kwargs):
    # GPipe's layers distinguish calls by name scope and ignore the step seed,
    # which depends on the seed of the run.
    pair = original(*args, **kwargs)
    return pair + tf.cast(py_utils.GetStepSeed(), pair.dtype)

  return {
    _PY_UTILS + 'ResetStepSeed': reset_step_seed,
    'lingvo.core.gpipe.GenerateStepSeedPair': gpipe_step_seed_pair,
  }


def _current_graph() -> Any:
  """Returns the graph that is being traced; None in eager mode."""
  tf = lingvo_runtime.module('tensorflow')
  if tf.executing_eagerly():
    return None
  return tf.compat.v1.get_default_graph()


def _has_step_seed(graph: Any) -> bool:
  """Whether a graph has a step seed, as Lingvo's functions do."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  return (
    not _is_control_flow(graph) and id(graph) in py_utils._STEP_SEED_DICT.dict
  )


def _is_control_flow(graph: Any, kind: str = 'ControlFlowFuncGraph') -> bool:
  """Whether a graph is of a branch or a loop of TensorFlow."""
  kinds = lingvo_runtime.module(
    'tensorflow.python.ops.control_flow_v2_func_graphs'
  )
  return isinstance(graph, getattr(kinds, kind))


def _constant(number: int) -> Any:
  """Returns a hash of a number: int32 [2]."""
  words = []
  for spread in _SPREAD:
    word = number * spread & 0xFFFFFFFF
    word = (word ^ word >> 15) * 0x2C1B3C6D & 0xFFFFFFFF
    word = (word ^ word >> 12) | 1
    words.append(word - (word >> 31 << 32))
  return lingvo_runtime.module('tensorflow').constant(words)
