"""A text file as sequences of bytes, without a tokenizer or TensorFlow.

`BytesInput` reads it with NumPy; `GrainBytesInput` reads the same examples from
the Grain dataset returned by `blocks`. They are templates for your own inputs.

Legend: B examples per batch, T bytes per example.
"""

import functools
import os
import pathlib
from typing import Any

import numpy as np

from pax_compat import errors
from pax_compat.config import REQUIRED
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.inputs import grain_input, indexed_input
from pax_compat.nested_map import NestedMap

VOCAB_SIZE = 256


class _ByteTexts:
  """Strings of bytes, for inputs whose ids are bytes."""

  def tokenizers(self) -> dict[str, str]:
    return {'': 'bytes'}

  def ids_to_strings(self, ids, lengths, key=None) -> list[str]:
    del key
    return [
      bytes(row[:length].astype(np.uint8)).decode('utf-8', errors='replace')
      for row, length in zip(ids, lengths, strict=True)
    ]

  def prompts(self, strings, key=None) -> prompts_lib.Prompts:
    del key
    # They begin a text: after 0, which is before a text.
    tokens = [list(string.encode('utf-8')) for string in strings]
    return prompts_lib.of_tokens(tokens, begin=[0])


class BytesInput(_ByteTexts, indexed_input.IndexedInput):
  """Splits a file into blocks, for next-byte prediction.

  Attributes:
    path: the file.
    seq_len: T. The last block is padded.
  """

  path: str = REQUIRED
  seq_len: int = REQUIRED

  @functools.cached_property
  def _text(self) -> np.ndarray:
    # Opened when it is read: texts are converted to ids without the file.
    return _mapped(self.path)

  @property
  def num_examples(self) -> int:
    """The number of blocks of the file."""
    return -(-len(self._text) // self.seq_len)

  def examples(self, indices: np.ndarray) -> NestedMap:
    """Returns blocks; see `block`."""
    return NestedMap(block(self._text, indices[:, np.newaxis], self.seq_len))


class GrainBytesInput(_ByteTexts, grain_input.GrainInput):
  """Reads `blocks` with Grain; its `dataset_fn` is a config of `blocks`."""


def blocks(path: str, seq_len: int) -> Any:
  """Returns the same examples as a Grain `MapDataset`."""
  import grain  # An optional dependency.

  text = _mapped(path)
  source = grain.MapDataset.source(range(-(-len(text) // seq_len)))
  return source.map(lambda index: block(text, index, seq_len))


def block(text: np.ndarray, index: Any, seq_len: int) -> dict[str, np.ndarray]:
  """Returns one or several blocks.

  >>> found = block(np.frombuffer(b'bytes', np.uint8), 1, seq_len=3)
  >>> {name: x.tolist() for name, x in found.items()}['labels']
  [101, 115, 0]
  >>> found['ids'].tolist(), found['weights'].tolist()
  ([116, 101, 0], [1.0, 1.0, 0.0])

  Args:
    text: [n], uint8.
    index: [] or [B, 1], numbers of blocks.
    seq_len: T.

  Returns:
    `labels`, the bytes to predict, `ids`, the bytes before them (0 before the
    first), `segment_ids` and `segment_pos`, [T] or [B, T], int32; `paddings`
    and `weights`, float32.
  """
  positions = index * seq_len + np.arange(seq_len)
  is_text = positions < len(text)
  positions = np.minimum(positions, len(text) - 1)
  labels = np.where(is_text, text[positions], 0)
  before = np.where(is_text & (positions > 0), text[positions - 1], 0)
  whole = dict(
    ids=before,
    labels=labels,
    segment_ids=is_text,
    segment_pos=np.arange(seq_len) + 0 * positions,
  )
  return {
    **{name: x.astype(np.int32) for name, x in whole.items()},
    'paddings': 1 - is_text.astype(np.float32),
    'weights': is_text.astype(np.float32),
  }


def _mapped(path: str | os.PathLike) -> np.ndarray:
  """Returns the bytes of a file, memory-mapped."""
  try:
    if not pathlib.Path(path).stat().st_size:
      return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, mode='r')
  except OSError as e:
    raise errors.UserError(
      f'the text {pathlib.Path(path).absolute()} cannot be read: {e.strerror}'
    ) from e
