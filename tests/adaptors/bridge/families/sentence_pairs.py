"""Synthetic batches of sentences and translations, as of mt's inputs.

Shapes: B batch, S time of the source, T time of the target.
"""

import numpy as np

ROWS, SOURCE_LENGTH, TARGET_LENGTH = 8, 7, 6
VOCAB_SIZE = 32
# Lower ids are special: unknown words, starts and ends.
_FIRST_ID, _SOS, _EOS = 4, 1, 2


def batch(seed: int, rows: int = ROWS) -> dict[str, np.ndarray]:
  """Returns a batch by dotted name; all but the first row have padding.

  Args:
    seed: of the ids.
    rows: B.
  """
  rng = np.random.default_rng(seed)
  source = sentences(rng, rows, SOURCE_LENGTH)
  target = sentences(rng, rows, TARGET_LENGTH)
  labels = target['ids']
  shifted = np.roll(labels, 1, axis=1)
  shifted[:, 0] = _SOS
  target |= dict(
    ids=shifted.astype(np.int32),
    labels=labels,
    weights=1 - target['paddings'],
  )
  return {f'src.{name}': x for name, x in source.items()} | {
    f'tgt.{name}': x for name, x in target.items()
  }


def sentences(
  rng: np.random.Generator, rows: int, length: int
) -> dict[str, np.ndarray]:
  """Returns ids, int32, and paddings, float32, both [rows, length].

  Each sentence ends with its end's id; the first one has no padding.
  """
  ids = rng.integers(_FIRST_ID, VOCAB_SIZE, (rows, length))
  lengths = np.linspace(length, length / 2, rows).astype(int)[:, None]
  positions = np.arange(length)[None]
  ids = np.where(positions == lengths - 1, _EOS, ids)
  is_padding = positions >= lengths
  return dict(
    ids=np.where(is_padding, 0, ids).astype(np.int32),
    paddings=is_padding.astype(np.float32),
  )
