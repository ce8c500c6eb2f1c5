"""Replaces ops of TensorFlow and Lingvo that XLA does not compile.

While a function is traced under `replaced`, ops that XLA refuses are replaced
by equivalent ones, run-time checks are removed, and all random numbers depend
on one seed.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from adaptors import lingvo_runtime
from adaptors.bridge.ops import (
  bounded_loops,
  fixed_random_ops,
  function_replacing,
  random_ops,
  sampled_softmax,
  sharded_lookup,
  stacked_recurrent,
  summaries,
)

_ARRAY = 'tensorflow.python.ops.gen_array_ops.'
_LOGGING = 'tensorflow.python.ops.gen_logging_ops.'
_REPLICAS = 'tensorflow.python.tpu.ops.tpu_ops.cross_replica_sum'
_EMBEDDING = (
  'tensorflow.python.ops.embedding_ops._embedding_lookup_and_transform'
)
_ASSERT = 'tensorflow.python.ops.control_flow_assert.Assert'
_PRINT = 'tensorflow.python.ops.logging_ops.print_v2'
_LINGVO_OPS = 'lingvo.core.ops.'


class Replacement(NamedTuple):
  """A replaced call.

  Attributes:
    function: the function's name, such as `random_uniform`.
    scope: the name scope of the call, with Lingvo's layers.
  """

  function: str
  scope: str


@contextlib.contextmanager
def replaced(seed: Any | None) -> Iterator[list[Replacement]]:
  """Replaces ops that XLA does not compile while TensorFlow traces functions.

  It must be entered while the outermost function is traced, and also covers
  called functions, loops and branches. Random numbers of NumPy or Python become
  constants of the trace.

  Args:
    seed: int32 [2], a tensor of the traced function, for all random numbers.
      None for evaluation, in which Lingvo turns most randomness off; the rest
      has a fixed seed.

  Yields:
    The replaced calls so far.
  """
  seeds = random_ops.Seeds(seed)
  calls: list[Replacement] = []
  functions = {
    **_updates(),
    **_lookups(),
    **_identities(),
    **_checks(),
    **random_ops.replacements(seeds),
    **sampled_softmax.replacements(seeds),
    **fixed_random_ops.of_bridged(),
  }
  functions |= _raw(functions)
  functions = {
    name: _recording(calls, name, function)
    for name, function in functions.items()
  }
  functions |= random_ops.lingvo_replacements(seeds)
  functions |= bounded_loops.replacements() | summaries.replacements()
  functions |= stacked_recurrent.replacements()
  with function_replacing.replaced(functions), _lingvo_state_kept():
    yield calls


def _recording(
  calls: list[Replacement], function_name: str, function: Callable
) -> Callable:
  """Returns a replacement that records its calls.

  Calls that it forwards to the original are not recorded.
  """
  ops = lingvo_runtime.module('tensorflow.python.framework.ops')
  short = function_name.rpartition('.')[2].lstrip('_')

  def call(original, *args, **kwargs):
    record = Replacement(short, ops.get_name_scope())
    calls.append(record)

    def forward(*args, **kwargs):
      calls.remove(record)
      return original(*args, **kwargs)

    return function(forward, *args, **kwargs)

  return call


def _raw(functions: dict[str, Callable]) -> dict[str, Callable]:
  """Returns the same for `tf.raw_ops`, which are separate functions."""
  raw = {}
  for name, function in functions.items():
    module, _, attribute = name.rpartition('.')
    op = ''.join(word.capitalize() for word in attribute.split('_'))
    if hasattr(lingvo_runtime.module(module), op):
      raw[f'{module}.{op}'] = function
  return raw


def _updates() -> dict[str, Callable]:
  """Returns the replacements of in-place updates."""
  tf = lingvo_runtime.module('tensorflow')

  def scattered(scatter, _, x, i, v, name=None):
    return scatter(x, tf.convert_to_tensor(i)[:, None], v, name=name)

  def same(_, x, name=None):
    return tf.identity(x, name=name)

  return {
    _ARRAY + 'inplace_update': functools.partial(
      scattered, tf.tensor_scatter_nd_update
    ),
    _ARRAY + 'inplace_add': functools.partial(
      scattered, tf.tensor_scatter_nd_add
    ),
    _ARRAY + 'inplace_sub': functools.partial(
      scattered, tf.tensor_scatter_nd_sub
    ),
    _ARRAY + 'deep_copy': same,
  }


def _lookups() -> dict[str, Callable]:
  """Returns the replacements of lookups in sharded tables."""
  embedding_ops = lingvo_runtime.module('tensorflow.python.ops.embedding_ops')

  def embedding_lookup(
    original,
    params,
    ids,
    partition_strategy='mod',
    name=None,
    max_norm=None,
    transform_fn=None,
  ):
    is_sharded = isinstance(params, list | tuple) and len(params) > 1
    if not is_sharded or transform_fn is not None:
      return original(
        params, ids, partition_strategy, name, max_norm, transform_fn
      )
    found = sharded_lookup.lookup(params, ids, partition_strategy)
    return embedding_ops._clip(found, ids, max_norm)

  return {_EMBEDDING: embedding_lookup}


def _identities() -> dict[str, Callable]:
  """Returns replacements by identities."""
  tf = lingvo_runtime.module('tensorflow')

  def cross_replica_sum(_, x, group_assignment=None, name=None):
    # With one program for all devices, a tensor is global.
    return tf.identity(x, name=name)

  def check_numerics(_, tensor, message, name=None):
    return tf.identity(tensor, name=name)

  def print_(_, input, *args, name=None, **kwargs):
    return tf.identity(input, name=name)

  return {
    _REPLICAS: cross_replica_sum,
    _ARRAY + 'check_numerics': check_numerics,
    # TensorFlow wraps it late; earlier imports refer to this one.
    'tensorflow.python.ops.array_ops.check_numerics': check_numerics,
    _ARRAY + 'check_numerics_v2': check_numerics,
    _LOGGING + '_print': print_,
  }


def _checks() -> dict[str, Callable]:
  """Returns replacements of run-time checks and messages by no-ops."""
  tf = lingvo_runtime.module('tensorflow')

  def nothing(_, *args, **kwargs):
    return tf.no_op()

  names = (
    _ASSERT,
    _LOGGING + '_assert',
    _LOGGING + 'print_v2',
    _PRINT,
    _LINGVO_OPS + 'assert_shape_match',
    _LINGVO_OPS + 'assert_same_dim0',
  )
  return dict.fromkeys(names, nothing)


@contextlib.contextmanager
def _lingvo_state_kept() -> Iterator[None]:
  """Restores process state that Lingvo changes while a function is traced."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  step_seeds = py_utils._STEP_SEED_DICT.dict
  saved = dict(step_seeds)
  # GPipe replaces this one, and does not restore it after an exception.
  generate = py_utils.GenerateStepSeedPair
  try:
    yield
  finally:
    py_utils.GenerateStepSeedPair = generate
    step_seeds.clear()
    step_seeds.update(saved)
