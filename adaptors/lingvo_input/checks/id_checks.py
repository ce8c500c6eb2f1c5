"""Checks of token ids against the vocabulary, before the model sees them.

An embedding silently replaces an id outside of its table.
"""

from typing import Any

from absl import logging

from adaptors.lingvo_input.checks import vocabulary_checks
from adaptors.params import params_trees
from pax_compat.input_core import token_ids
from pax_compat.nested_map import NestedMap

_ASCII = 'lingvo.core.tokenizers.AsciiTokenizer'
# The number of its ids, for any `vocab_size`.
_ASCII_IDS = 76


class IdCheck:
  """Checks the ids of batches, in microseconds for each."""

  def __init__(self, name: str, params: Any, known: int | None = None):
    """Finds the number of ids of the tokenizers.

    Args:
      name: of the input, in messages.
      params: Lingvo Params of the input; not changed.
      known: number of ids of the model; None if unknown. If the tokenizers
        have more, a warning is logged.
    """
    self._name = name
    self._limit = _largest_vocabulary(params)
    if None not in (known, self._limit) and self._limit > known:
      logging.warning(
        '%s: a tokenizer has %d ids, and the largest table of the model %d'
        ' rows: a batch with an id from %d on will be an error',
        name,
        self._limit,
        known,
        known,
      )

  def __call__(self, batch: NestedMap):
    """Checks the leaves of the name `ids`.

    Labels and targets may be negative where their weight is 0.

    Raises:
      UserError: an id is negative, or not below the `vocab_size` of the largest
        tokenizer.
    """
    expected = f"expected ids below its tokenizer's vocab_size {self._limit}"
    token_ids.check(self._name, batch, self._limit, expected)


def _largest_vocabulary(params) -> int | None:
  """Returns the number of ids of the largest tokenizer; None if unknown."""
  named = dict(getattr(params, 'tokenizer_dict', None) or {})
  named[''] = getattr(params, 'tokenizer', None)
  sizes = [_size(p) for p in named.values() if p is not None]
  return max(sizes) if sizes and None not in sizes else None


def _size(tokenizer) -> int | None:
  size = vocabulary_checks.vocab_size(tokenizer)
  if params_trees.has_base(tokenizer.cls, _ASCII):
    return max(size or 0, _ASCII_IDS)
  return size
