"""Decoding tokens by the vocabularies of a SeqIO task.

Shapes: B examples, T tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from pax_compat import errors
from pax_compat.input_core import prompts as prompts_lib

# Names of features by their names in the model.
_FEATURES = {None: 'targets', 'tgt': 'targets', 'src': 'inputs'}


def find(features: Mapping[str, Any], key: str | None) -> Any:
  """Returns a vocabulary of a task's features.

  Args:
    features: the task's `output_features`.
    key: 'src' for that of the inputs; None or 'tgt' for that of the targets.

  Raises:
    UserError: the task does not have it.
  """
  if key not in _FEATURES:
    raise errors.UserError(f"key is {key!r}; expected None, 'src' or 'tgt'")
  if _FEATURES[key] not in features:
    raise errors.UserError(
      f'the task has no feature {_FEATURES[key]!r} with a vocabulary, but only'
      f' {", ".join(features)}; expected overridden_vocab'
    )
  return features[_FEATURES[key]].vocabulary


def decode(vocabulary: Any, ids: Any, lengths: Any) -> list[str]:
  """Returns B strings.

  Args:
    vocabulary: decodes a list of tokens.
    ids: [B, T], or [T] of a single example.
    lengths: [B], or that of the single example; None for T.
  """
  ids = np.atleast_2d(ids)
  if lengths is None:
    lengths = [ids.shape[1]] * len(ids)
  lengths = np.atleast_1d(lengths)
  decoded = [
    vocabulary.decode([int(token) for token in row[: int(length)]])
    for row, length in zip(ids, lengths, strict=True)
  ]
  # A pass-through vocabulary returns ids.
  return [x if isinstance(x, str) else ' '.join(map(str, x)) for x in decoded]


def prompts(
  vocabulary: Any, strings: Sequence[str], bos_id: int
) -> prompts_lib.Prompts:
  """Returns the tokens of B strings, each after the id `bos_id`."""
  tokens = [list(map(int, vocabulary.encode(text))) for text in strings]
  return prompts_lib.of_tokens(
    tokens, begin=[bos_id], eos_id=getattr(vocabulary, 'eos_id', None)
  )


def descriptions(features: Mapping[str, Any]) -> dict[str, str]:
  """Describes the vocabularies: targets, and as 'src' inputs that differ.

  Features of token ids without a text, of a `PassThroughVocabulary`, are left
  out: they do not say which tokenizer made them.
  """
  found = {
    name: describe(feature.vocabulary)
    for name, feature in features.items()
    if name in _FEATURES.values() and not _has_ids_only(feature.vocabulary)
  }
  named = {'': found.get('targets')}
  if found.get('inputs') != named['']:
    named['src'] = found.get('inputs')
  return {key: text for key, text in named.items() if text}


def _has_ids_only(vocabulary: Any) -> bool:
  seqio = lingvo_runtime.seqio()
  return isinstance(vocabulary, seqio.PassThroughVocabulary)


def describe(vocabulary: Any) -> str:
  """Returns a description that is equal for vocabularies of equal tokens."""
  if type(vocabulary).__str__ is not object.__str__:
    return str(vocabulary)
  fields = ('vocab_size', 'extra_ids', 'eos_id', 'unk_id', 'pad_id')
  values = (f'{name}={getattr(vocabulary, name, None)}' for name in fields)
  return f'{type(vocabulary).__name__}({", ".join(values)})'
