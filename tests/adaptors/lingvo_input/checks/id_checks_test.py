"""Tests of finding ids that no vocabulary has."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import input_adaptor
from adaptors.lingvo_input.checks import id_checks
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators as testing


def _check(batch, vocab_size=10, cls='VocabFileTokenizer'):
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  tokenizer = getattr(tokenizers, cls).Params().Set(vocab_size=vocab_size)
  params = testing.lm_params('iota:3', tokenizer=tokenizer)
  id_checks.IdCheck('Train', params)(batch)


def _ids(*rows) -> np.ndarray:
  return np.array(rows, np.int32)


def test_negative_ids_are_refused():
  good = NestedMap(ids=_ids([0, 9]), labels=_ids([-1, 12]), src=NestedMap())
  _check(good)
  good.src.ids = _ids([1, 2, 3], [4, -7, -1])
  expected = (
    r'Train: in example 1 of a batch, src.ids has the id -7 at \[1, 1\] of'
    r' \[2, 3\], and 1 more of the kind; expected none below 0'
  )
  with pytest.raises(errors.UserError, match=expected):
    _check(good)


def test_ids_beyond_the_vocabulary_are_refused():
  batch = NestedMap(tgt=NestedMap(ids=_ids([1, 10])))
  with pytest.raises(
    errors.UserError, match='tgt.ids has the id 10 .*vocab_size 10'
  ):
    _check(batch)
  # The default says nothing about a file, and letters have ids of their own.
  _check(NestedMap(ids=_ids([500])), vocab_size=64)
  _check(NestedMap(ids=_ids([75])), cls='AsciiTokenizer')
  with pytest.raises(errors.UserError, match='the id 76'):
    _check(NestedMap(ids=_ids([76])), cls='AsciiTokenizer')


def test_a_subclass_has_the_ids_of_its_letters():
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')

  class Letters(tokenizers.AsciiTokenizer):
    """The same ids under another name."""

  class AsciiTokenizer(tokenizers.VocabFileTokenizer):
    """Other ids under the same name."""

  for cls, size in ((Letters, 76), (AsciiTokenizer, 10)):
    params = testing.lm_params(
      'iota:3', tokenizer=cls.Params().Set(vocab_size=10)
    )
    check = id_checks.IdCheck('Train', params)
    with pytest.raises(errors.UserError, match=f'vocab_size {size}'):
      check(NestedMap(ids=_ids([76])))


def test_a_tokenizer_with_more_ids_than_the_model_is_told(log):
  params = testing.lm_params('iota:3')  # Letters, of 76 ids.
  id_checks.IdCheck('Train', params, 76)
  assert not log()
  id_checks.IdCheck('Train', params, 64)
  expected = (
    'Train: a tokenizer has 76 ids, and the largest table of the model 64'
  )
  assert expected in log()


def test_other_leaves_called_ids_pass():
  _check(NestedMap(ids=np.array([[-1.0]]), x=_ids([-3])))
  _check(NestedMap(ids=np.zeros([0, 4], np.int32)))


def test_batches_are_checked(tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(8))
  adaptor = input_adaptor.LingvoInputAdaptor(
    input=_negative(testing.lm_params(pattern))
  )
  with pytest.raises(errors.UserError, match='ids has the id -'):
    adaptor.get_next()
  adaptor.close()


def _negative(params):
  """Returns Params of the same generator, whose ids are negative."""

  class Negative(params.cls):
    def _InputBatch(self):  # noqa: N802
      batch = super()._InputBatch()
      batch.ids = -batch.ids
      return batch

  made = Negative.Params()
  return made.Set(**{k: v for k, v in params.IterParams() if k != 'cls'})
