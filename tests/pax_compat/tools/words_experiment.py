"""An experiment whose data has problems for `inspect_input` to find.

Its datasets differ in the environment variable `WORDS`, a JSON object.
"""

import json
import os

import numpy as np

from pax_compat import (
  base_experiment,
  base_input,
  experiment_registry,
)
from pax_compat.nested_map import NestedMap

WORDS = ['<pad>', 'a', 'b', '<script>', 'd', 'e', 'f', 'g']


class WordsInput(base_input.BaseInput):
  """Batches of two rows: numbered words, padding, and packed segments.

  Attributes:
    rows: number of rows.
    kinds: number of different rows.
    splits: whether the rows are split over hosts.
    shift: is added to the ids.
    vocabulary: what describes the tokenizer.
  """

  rows: int = 8
  kinds: int = 1000
  splits: bool = True
  shift: int = 0
  vocabulary: str = 'words'

  def __post_init__(self):
    super().__post_init__()
    self._next = 0

  def get_next(self):
    step = self.num_infeed_hosts if self.splits else 1
    host = self.infeed_host_index if self.splits else 0
    if self._next >= self.rows // 2 // step:
      raise StopIteration
    first = 2 * (self._next * step + host)
    self._next += 1
    numbers = [row % self.kinds for row in (first, first + 1)]
    ids = [[n % 8, n // 8 % 7 + 1, 3, 0] for n in numbers]
    return NestedMap(
      src=NestedMap(
        ids=np.array(ids, np.int32) + self.shift,
        paddings=np.array([[0, 0, 0, 1]] * 2, np.float32),
        segment_ids=np.array([[1, 1, 2, 0]] * 2, np.int32),
      ),
      names=np.array([[f'row {n} of <{self.name}>'] for n in numbers], object),
      eval_sample_weights=np.array([1, 1], np.float32),
    )

  def reset(self):
    self._next = 0

  def tokenizers(self):
    return {'src': self.vocabulary}

  def ids_to_strings(self, ids, lengths, key=None):
    assert key == 'src'
    return [
      ' '.join(WORDS[token] for token in row[:length])
      for row, length in zip(ids, lengths, strict=True)
    ]


@experiment_registry.register
class Words(base_experiment.BaseExperiment):
  """Words in two datasets."""

  def task(self):
    raise NotImplementedError

  def datasets(self):
    changed = json.loads(os.environ.get('WORDS', '{}'))
    return [
      WordsInput.config(name='Train', is_training=True),
      WordsInput.config(name='Dev', reset_for_eval=True).set(**changed),
    ]
