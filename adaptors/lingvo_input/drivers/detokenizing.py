"""Strings of token ids, by the tokenizers of a Lingvo input generator.

Legend: B batch, T time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pax_compat import errors


def function(
  tf: Any, generator: Any, session: Any | None, key: str | None
) -> Callable[..., list[str]]:
  """Returns a function of ids [B, T] and lengths [B] that returns B strings.

  Args:
    tf: TensorFlow.
    generator: of Lingvo.
    session: of the generator's graph; None for a traced function.
    key: the name of one of several tokenizers; None for the only one.

  Raises:
    UserError: the generator has no tokenizer, or none called `key`.
  """
  if not hasattr(generator, 'IdsToStrings'):
    raise errors.UserError(
      f'{type(generator).__name__} has no IdsToStrings, so its ids cannot be'
      ' turned into text'
    )
  native = _native(tf, _chosen(generator, key), session)

  def strings(ids, lengths) -> list[str]:
    found = native(np.asarray(ids, np.int32), np.asarray(lengths, np.int32))
    return [t.decode('utf-8', errors='replace') for t in found]

  return strings


def _chosen(generator, key: str | None):
  """Returns the generator's `IdsToStrings` with the tokenizer chosen."""
  if key is None:
    return generator.IdsToStrings

  def decode(ids, lengths):
    try:
      return generator.IdsToStrings(ids, lengths, key=key)
    except KeyError:
      known = getattr(generator, 'tokenizer_dict', {})
      raise errors.UserError(
        f'{type(generator).__name__} has no tokenizer {key!r}'
        + errors.did_you_mean(key, known)
      ) from None

  return decode


def _native(tf, ids_to_strings, session) -> Callable[..., Any]:
  """Returns ids [B, T] and lengths [B] -> an array of bytes."""
  if session is None:
    decode = tf.function(ids_to_strings, autograph=False)
    traced = decode.get_concrete_function(
      tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
    )
    return lambda ids, lengths: traced(
      tf.constant(ids), tf.constant(lengths)
    ).numpy()
  with session.graph.as_default(), tf.device('/cpu:0'):
    ids = tf.compat.v1.placeholder(tf.int32, [None, None])
    lengths = tf.compat.v1.placeholder(tf.int32, [None])
    strings = ids_to_strings(ids, lengths)
    session.run(tf.compat.v1.tables_initializer())
    return session.make_callable(strings, feed_list=[ids, lengths])
