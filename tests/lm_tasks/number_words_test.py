"""Tests of numbers in words, and of pairs of texts."""

import doctest

import numpy as np
import pytest

from lm_tasks import number_words
from pax_compat import errors


def _input(**fields):
  given = dict(split='test', batch_size=4, seq_len=48, reset_for_eval=True)
  return number_words.NumberWordsInput.config(**given | fields).Instantiate()


def test_the_examples():
  result = doctest.testmod(number_words)
  assert result.attempted and not result.failed


@pytest.mark.parametrize(
  'number, english, german',
  [
    (0, 'zero', 'null'),
    (1, 'one', 'eins'),
    (16, 'sixteen', 'sechzehn'),
    (21, 'twenty-one', 'einundzwanzig'),
    (30, 'thirty', 'dreißig'),
    (100, 'one hundred', 'einhundert'),
    (1001, 'one thousand one', 'eintausendeins'),
    (
      7012,
      'seven thousand twelve',
      'siebentausendzwölf',
    ),
  ],
)
def test_words(number, english, german):
  assert number_words.english(number) == english
  assert number_words.german(number) == german


def test_no_number_is_in_both_splits():
  train, test = (set(_input(split=s).pairs) for s in ('train', 'test'))
  assert len(train) == 9744 and len(test) == 256
  assert not train & test
  for side in (0, 1):
    assert len({pair[side] for pair in train | test}) == number_words.LIMIT


def test_a_batch_and_its_strings():
  data = _input()
  batch = data.get_next()
  lengths = (1 - batch.tgt.paddings).sum(1).astype(int)
  sources, targets = zip(*data.pairs[:4], strict=True)
  assert data.ids_to_strings(batch.tgt.labels, lengths) == list(targets)
  assert data.ids_to_strings(batch.src.ids, [48] * 4, key='src') == list(
    sources
  )
  np.testing.assert_array_equal(batch.tgt.ids[:, 0], number_words.BEGIN_ID)
  np.testing.assert_array_equal(
    batch.tgt.ids[:, 1:] * batch.tgt.weights[:, 1:],
    batch.tgt.labels[:, :-1] * batch.tgt.weights[:, 1:],
  )
  found = [dict(decoded='zehn', target=target) for target in ('zehn', 'elf')]
  metrics = data.example_metrics('decode', [({}, one) for one in found])
  assert metrics == {'exact_match': 0.5}


def test_a_text_is_not_truncated():
  with pytest.raises(errors.UserError, match="expected at least 5, for 'zehn'"):
    number_words.batch([('ten', 'zehn')], seq_len=4)
  with pytest.raises(errors.UserError, match="is 'dev'; expected train or"):
    _input(split='dev')
