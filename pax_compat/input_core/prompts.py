"""Prompts: tokens that a language model continues.

Shapes: B prompts, P tokens of the longest.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Prompts:
  """Tokenized prompts.

  Attributes:
    ids: [B, P], int32, with the token that begins a sequence, if the model is
      trained with one; 0 after a prompt.
    lengths: [B], int32, number of tokens of each.
    begin: number of tokens before those of the text, such as 1.
    eos_id: the token that ends a sequence; None for none.
  """

  ids: np.ndarray
  lengths: np.ndarray
  begin: int = 0
  eos_id: int | None = None


def of_tokens(
  tokens: Sequence[Sequence[int]],
  *,
  begin: Sequence[int] = (),
  eos_id: int | None = None,
) -> Prompts:
  """Returns prompts.

  >>> of_tokens([[5, 6], [7]], begin=[1]).ids.tolist()
  [[1, 5, 6], [1, 7, 0]]

  Args:
    tokens: the tokens of each text.
    begin: the tokens that begin each sequence.
    eos_id: see `Prompts`.
  """
  rows = [[*begin, *row] for row in tokens]
  lengths = np.array([len(row) for row in rows], np.int32)
  ids = np.zeros((len(rows), max(lengths, default=0)), np.int32)
  for row, target in zip(rows, ids, strict=True):
    target[: len(row)] = row
  return Prompts(ids, lengths, len(begin), eos_id)
