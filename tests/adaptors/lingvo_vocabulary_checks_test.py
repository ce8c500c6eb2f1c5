"""Vocabulary files that are refused, and the ones that Lingvo reads."""

import numpy as np
import pytest

from adaptors import lingvo_runtime, lingvo_vocabulary_checks
from pax_compat import errors

GOOD = '<S>\t1\n</S>\t2\n<UNK>\t3\nto\t4\nbe\t5\n'
PLAIN = '<S>\n</S>\n<UNK>\nto\nbe\n'


@pytest.fixture
def check(tmp_path):
  """Returns a function that checks an input with a vocabulary of some text."""
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')

  def check(text, **fields):
    path = tmp_path / 'vocab.txt'
    if text is not None:
      path.write_text(text)
    tokenizer = tokenizers.VocabFileTokenizer.Params().Set(
      token_vocab_filepath=str(path), **fields
    )
    params = hyperparams.Params()
    params.Define('tokenizer', tokenizer, '')
    lingvo_vocabulary_checks.check_vocabularies('Train', params)
    return tokenizer

  return check


@pytest.mark.parametrize(
  ('text', 'has_ids', 'ids'),
  [
    (GOOD, True, [1, 4, 5, 2]),
    (GOOD + '\n', True, [1, 4, 5, 2]),
    (PLAIN, False, [0, 3, 4, 1]),
  ],
)
def test_what_passes_is_read_by_lingvo(check, text, has_ids, ids):
  tf = lingvo_runtime.module('tensorflow')
  tokenizer = check(text, load_token_ids_from_vocab=has_ids)
  tokenizer.Set(name='tokenizer', vocab_size=10, target_unk_id=3)
  found, *_ = tokenizer.Instantiate().StringsToIds(tf.constant(['to be']), 4)
  np.testing.assert_array_equal(found, [ids])


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (None, r"Train: the vocabulary '.*vocab.txt' does not exist"),
    (PLAIN, "has the line 1 '<S>'; expected a token, a tab and its id"),
    (GOOD + 'or\tfive\n', r"has the line 6 'or\\tfive'"),
    ('to\t4\nbe\t5\n', 'lacks </S>, <S>, <UNK>, which every'),
    (GOOD.replace('<UNK>', '<unk>'), 'lacks <UNK>, which'),
  ],
)
def test_what_would_end_the_process_is_refused(check, text, message):
  with pytest.raises(errors.UserError, match=message):
    check(text)
