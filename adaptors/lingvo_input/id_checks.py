"""Token ids that no vocabulary has, found before a model takes them.

An embedding takes an id outside of its table for another one in silence.
"""

from typing import Any

import jax
import numpy as np

from adaptors.lingvo_input import vocabulary_checks
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# The leaf of a batch that is looked up in a table, whatever it is part of.
_IDS = 'ids'

# Ids that Lingvo's own letters have, whatever `vocab_size` says.
_ASCII_IDS = 76


class IdCheck:
  """Checks the ids of batches; microseconds for each."""

  def __init__(self, name: str, params: Any):
    """Finds out which ids there may be.

    Args:
      name: how messages call the input.
      params: Lingvo Params of the input; not changed.
    """
    self._name = name
    self._limit = _largest_vocabulary(params)

  def __call__(self, batch: NestedMap):
    """Checks the leaves that are called `ids`.

    Labels and targets may be negative where they do not count.

    Raises:
      UserError: an id is negative, or not below the `vocab_size` of the largest
        tokenizer.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
      key = getattr(path[-1], 'key', getattr(path[-1], 'name', None))
      if key != _IDS or leaf.dtype.kind not in 'iu' or not leaf.size:
        continue
      if leaf.min() < 0:
        self._raise(path, leaf, leaf < 0, 'expected none below 0')
      if self._limit is not None and leaf.max() >= self._limit:
        expected = (
          f"expected ids below its tokenizer's vocab_size {self._limit}"
        )
        self._raise(path, leaf, leaf >= self._limit, expected)

  def _raise(self, path, leaf, is_wrong, expected):
    first = tuple(map(int, np.argwhere(is_wrong)[0]))
    leaf_path = jax.tree_util.keystr(path, simple=True, separator='.')
    more = int(is_wrong.sum()) - 1
    raise errors.UserError(
      f'{self._name}: in example {first[0]} of a batch, {leaf_path} has the id'
      f' {leaf[first]} at {list(first)} of {list(leaf.shape)}, and {more} more'
      f' of the kind; {expected}'
    )


def _largest_vocabulary(params) -> int | None:
  """Returns how many ids the tokenizers have; None where that is not known."""
  named = dict(getattr(params, 'tokenizer_dict', None) or {})
  named[''] = getattr(params, 'tokenizer', None)
  sizes = [_size(p) for p in named.values() if p is not None]
  return max(sizes) if sizes and None not in sizes else None


def _size(tokenizer) -> int | None:
  size = vocabulary_checks.vocab_size(tokenizer)
  if tokenizer.cls.__name__ == 'AsciiTokenizer':
    return max(size or 0, _ASCII_IDS)
  return size
