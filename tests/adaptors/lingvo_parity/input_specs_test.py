"""Tests of the shapes of batches, traced without data."""

import numpy as np
import pytest

from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

from adaptors import lingvo_runtime  # noqa: E402
from adaptors.lingvo_parity import input_specs  # noqa: E402
from adaptors.lingvo_parity.input_specs import Spec  # noqa: E402
from pax_compat import errors  # noqa: E402

_INT, _FLOAT = np.dtype('int32'), np.dtype('float32')


def _traced(params) -> dict[str, Spec]:
  return {
    spec.path: (spec.shape, spec.dtype)
    for _, spec in input_specs.trace(params).flatten_items()
  }


@pytest.mark.slow  # Lingvo's mt imports what takes seconds.
def test_sentences_of_missing_files():
  """With 64-bit ids, lengths of the Params, and without the vocabulary."""
  module = lingvo_runtime.module('lingvo.tasks.mt.input_generator')
  params = module.NmtDoubleInput.Params().Set(
    file_pattern='tfrecord:/nowhere/train*',
    vocab_file='/nowhere/words.vocab',
    permutation_distance=3,
    bucket_upper_bound=[6, 10],
    bucket_batch_limit=[4, 2],
    source_max_length=8,
    target_max_length=9,
  )
  params.tokenizer.token_vocab_filepath = '/nowhere/words.vocab'
  found = _traced(params)
  assert found['src.ids'] == ((2, 8), _INT)
  assert found['tgt.labels'] == ((2, 9), _INT)
  assert found['tgt.paddings'] == ((2, 9), _FLOAT)
  assert params.vocab_file == '/nowhere/words.vocab'


def test_an_input_that_cannot_be_traced():
  base = lingvo_runtime.module('lingvo.core.base_input_generator')

  class NoBatches(base.BaseInputGenerator):
    def _InputBatch(self):
      raise ValueError('which files?')

  with pytest.raises(
    errors.UserError, match=r'NoBatches: .*ValueError: which files\? .*_test.py'
  ):
    _traced(NoBatches.Params())


def test_a_list_of_batches():
  base = lingvo_runtime.module('lingvo.core.base_input_generator')

  class Several(base.BaseInputGenerator):
    def _InputBatch(self):
      return []

  with pytest.raises(errors.UserError, match='only one NestedMap'):
    _traced(Several.Params())
