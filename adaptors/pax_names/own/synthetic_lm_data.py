"""Synthetic batches for language models: `SyntheticLmData` of Pax's inputs.

It is a Lingvo input generator. Lingvo is loaded when the class is first asked
for.
"""

import functools
from typing import Any

from adaptors import lingvo_runtime

_NAME = 'SyntheticLmData'


@functools.cache
def _generator() -> type:
  tf = lingvo_runtime.tensorflow()
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  nested_map = lingvo_runtime.module('lingvo.core.nested_map')

  class SyntheticLmData(generators.BaseInputGenerator):
    """Rows of one segment each, in which all ids and labels are 1.

    A batch has `ids`, `labels`, `segment_ids` and `segment_pos`, int32, and
    `paddings` and `weights`, float32, each [batch_size, seq_len].
    """

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('seq_len', 0, 'T, tokens of a row.')
      return p

    HParams = Params

    def _InputBatch(self):
      shape = [self.params.batch_size, self.params.seq_len]
      ones = tf.ones(shape, tf.int32)
      return nested_map.NestedMap(
        ids=ones,
        labels=tf.identity(ones),
        segment_ids=tf.identity(ones),
        segment_pos=tf.cumsum(ones, axis=1, exclusive=True),
        paddings=tf.zeros(shape),
        weights=tf.ones(shape),
      )

  SyntheticLmData.__module__ = __name__
  SyntheticLmData.__qualname__ = _NAME
  return SyntheticLmData


def __getattr__(name: str) -> Any:
  if name == _NAME:
    return _generator()
  raise AttributeError(f'{__name__} has no attribute {name!r}')
