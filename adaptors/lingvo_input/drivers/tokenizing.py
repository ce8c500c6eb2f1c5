"""Token ids of strings, by the tokenizers of a Lingvo input generator.

Legend: B batch, T time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pax_compat import errors
from pax_compat.input_core import prompts as prompts_lib


def prompts(
  tf: Any,
  generator: Any,
  session: Any | None,
  strings: Sequence[str],
  key: str | None,
) -> prompts_lib.Prompts:
  """Returns prompts as the generator's targets begin: with its first token.

  Args:
    tf: TensorFlow.
    generator: of Lingvo.
    session: of the generator's graph; None to compute eagerly.
    strings: the prompts.
    key: the name of one of several tokenizers; None for the only one.

  Raises:
    UserError: the generator has no tokenizer, or none called `key`.
  """
  tokenizer = _tokenizer(generator, key)
  # No tokenizer makes more tokens than bytes, but for one at either end.
  longest = max((len(s.encode('utf-8')) for s in strings), default=0) + 2
  ids, paddings = _tokens(tf, generator, session, list(strings), longest, key)
  # The end of a sequence is a label; the ids end before it.
  lengths = np.sum(1 - paddings, axis=1).astype(np.int32)
  kept = np.arange(ids.shape[1]) < lengths[:, np.newaxis]
  ids = np.where(kept, ids, 0).astype(np.int32)[:, : max(lengths, default=0)]
  eos_id = getattr(tokenizer, 'eos_id', None)
  return prompts_lib.Prompts(
    ids, lengths, 1, None if eos_id is None else int(eos_id)
  )


def _tokenizer(generator, key: str | None) -> Any:
  known = getattr(generator, 'tokenizer_dict', None) or {}
  name = 'default' if key is None else key
  if known.get(name) is None:
    raise errors.UserError(
      f'{type(generator).__name__} has no tokenizer'
      + (f' {key!r}' + errors.did_you_mean(key, known) if key else '')
    )
  return known[name]


def _tokens(tf, generator, session, strings, longest, key):
  """Returns ids [B, T], which begin as the model's inputs, and paddings."""
  options = dict(external_max_length=longest, external_append_eos=True, key=key)
  if session is None:
    ids, _, paddings = generator.StringsToIds(tf.constant(strings), **options)
    return ids.numpy(), paddings.numpy()
  with session.graph.as_default(), tf.device('/cpu:0'):
    ids, _, paddings = generator.StringsToIds(tf.constant(strings), **options)
    session.run(tf.compat.v1.tables_initializer())
    return session.run([ids, paddings])
