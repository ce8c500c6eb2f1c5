"""Tests of decoding the tokens of SeqIO tasks."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input.metrics import token_texts
from pax_compat import errors
from tests.adaptors.seqio_input import tiny_tasks as testing


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  with testing.common_tasks():
    yield


def test_strings_and_tokenizers():
  seqio = lingvo_runtime.seqio()
  data = testing.config('ten').Instantiate()
  ids = np.array([[3 + ord('a'), 3 + ord('b')], [3 + ord('c'), 0]])

  assert data.ids_to_strings(ids, [2, 1]) == ['ab', 'c']
  assert data.ids_to_strings(ids, [1, 1], key='src') == ['a', 'c']
  assert data.ids_to_strings(ids[0], 1) == ['a']
  assert data.ids_to_strings(ids[:1], None) == ['ab']
  prompts = data.prompts(['ab', 'c'])
  assert prompts.ids.tolist() == [[0, *ids[0]], [0, *ids[1]]]
  assert (prompts.lengths.tolist(), prompts.begin) == ([3, 2], 1)
  assert prompts.eos_id == 1
  with pytest.raises(errors.UserError, match="key is 'source'; expected"):
    data.ids_to_strings(ids, [2, 1], key='source')
  numbers = testing.config(
    'ten', overridden_vocab=seqio.PassThroughVocabulary(300)
  ).Instantiate()
  assert numbers.ids_to_strings(ids, [2, 1]) == ['100 101', '102']
  assert data.tokenizers().keys() == {''}
  assert data.tokenizers() == testing.config('both').Instantiate().tokenizers()
  assert data.tokenizers() != numbers.tokenizers()


def test_token_ids_without_a_text_do_not_name_a_tokenizer():
  seqio = lingvo_runtime.seqio()
  ids, text = (
    seqio.Feature(vocabulary=vocabulary)
    for vocabulary in (seqio.PassThroughVocabulary(9), seqio.ByteVocabulary())
  )
  descriptions = token_texts.descriptions
  assert descriptions(dict(targets=ids)) == {}
  of_text = descriptions(dict(targets=text))
  assert of_text.keys() == {''}
  assert descriptions(dict(targets=text, inputs=ids)) == of_text
