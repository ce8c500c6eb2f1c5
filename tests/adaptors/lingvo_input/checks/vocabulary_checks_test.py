"""Vocabulary files that are refused, and the ones that Lingvo reads."""

import os

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import eval_adaptors, input_adaptor
from adaptors.lingvo_input.checks import (
  token_vocabularies,
  vocabulary_checks,
)
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing
from tests.pax_compat import launching

GOOD = '<S>\t1\n</S>\t2\n<UNK>\t3\nto\t4\nbe\t5\n'
PLAIN = '<S>\n</S>\n<UNK>\nto\nbe\n'
LOWER = GOOD.lower()
# As SentencePiece writes them: a score in the place of an id.
SCORES = '<unk>\t0\n<s>\t0\n</s>\t0.03\nto\t0.04\nbe\t4.9\n'

# Texts of vocabularies, and messages.
REFUSED = [
  (None, r"Train: the vocabulary '.*vocab.txt' does not exist"),
  (PLAIN, "has the line 1 '<S>'; expected a token, a tab and its id"),
  (GOOD + 'or\tfive\n', r"has the line 6 'or\\tfive'"),
  ('to\t4\nbe\t5\n', 'lacks </S>, <S>, <UNK>, which every'),
  (GOOD.replace('<UNK>', '<unk>'), 'lacks <UNK>, which'),
  (LOWER.replace('<unk>', '<UNK>'), 'lacks <unk>, which'),
  (LOWER + '<S>\t6\n', 'has <S> beside </s>, <s>, <unk>; expected either'),
  (GOOD + '\r\n', r"has the line 6 '\\r'; expected a token, a tab"),
  (GOOD + 'or\t\n', r"has the line 6 'or\\t'"),
  (GOOD + 'or\t.5\n', r"has the line 6 'or\\t.5'"),
  (
    GOOD + 'or\t99999999999\n',
    'line 6 .*; expected an id of 0 to 2147483647',
  ),
]


@pytest.fixture
def check(tmp_path):
  """Returns a function that checks an input with a vocabulary of some text.

  It takes the tokenizer's class and the field of the file, or the two of a
  VocabFileTokenizer.
  """
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')

  def check(
    text, cls='VocabFileTokenizer', field='token_vocab_filepath', **fields
  ):
    path = tmp_path / 'vocab.txt'
    if text is not None:
      path.write_bytes(text if isinstance(text, bytes) else text.encode())
    tokenizer = getattr(tokenizers, cls).Params()
    tokenizer.Set(**{field: str(path), **fields})
    params = hyperparams.Params()
    params.Define('tokenizer', tokenizer, '')
    vocabulary_checks.check_vocabularies('Train', params)
    return tokenizer

  return check


@pytest.mark.parametrize(
  ('text', 'has_ids', 'ids'),
  [
    (GOOD, True, [1, 4, 5, 2]),
    (GOOD + '\n', True, [1, 4, 5, 2]),
    (PLAIN, False, [0, 3, 4, 1]),
    (PLAIN.replace('to', '\nto'), False, [0, 3, 4, 1]),  # An empty line.
    (PLAIN.lower(), False, [0, 3, 4, 1]),
    (LOWER, True, [1, 4, 5, 2]),
    (LOWER.replace('\n', '\r\n'), True, [1, 4, 5, 2]),
    (SCORES, True, [0, 0, 4, 0]),
    (GOOD.replace('\t4', '\t +4 of it'), True, [1, 4, 5, 2]),
    (GOOD + 'be\t6\n', True, [1, 4, 6, 2]),  # The last line counts.
    (GOOD.replace('<S>\t1\n', ''), True, [0, 4, 5, 2]),
  ],
)
def test_what_passes_is_read_by_lingvo(check, text, has_ids, ids):
  tf = lingvo_runtime.module('tensorflow')
  tokenizer = check(text, load_token_ids_from_vocab=has_ids)
  tokenizer.Set(name='tokenizer', vocab_size=10, target_unk_id=3)
  found, *_ = tokenizer.Instantiate().StringsToIds(tf.constant(['to be']), 4)
  np.testing.assert_array_equal(found, [ids])


@pytest.mark.parametrize(('text', 'message'), REFUSED)
def test_what_would_end_the_process_is_refused(check, text, message):
  with pytest.raises(errors.UserError, match=message):
    check(text)


def read_vocabularies(*paths):
  """Reads each by the real op in a child; prints the path and the status."""
  tf = lingvo_runtime.tensorflow()
  ops = lingvo_runtime.module('lingvo.core.ops')
  for path in paths:
    pid = os.fork()
    if not pid:
      try:
        ops.str_to_vocab_tokens(
          tf.constant(['to be']),
          maxlen=4,
          vocab_filepath=path,
          load_token_ids_from_vocab=True,
        )
      except tf.errors.InvalidArgumentError:
        os._exit(2)
      os._exit(0)
    print(path, os.waitpid(pid, 0)[1], flush=True)


@pytest.mark.slow
def test_the_real_op_fails_at_what_is_refused(tmp_path):
  """It ends the process at most of them."""
  texts = [GOOD, *(text for text, _ in REFUSED if text is not None)]
  paths = [tmp_path / str(i) for i in range(len(texts))]
  for path, text in zip(paths, texts, strict=True):
    path.write_bytes(text.encode())
  done = launching.run_function(read_vocabularies, *paths)
  assert done.returncode == 0, done.stderr
  found = dict(line.split() for line in done.stdout.splitlines())
  good, *refused = (int(found[str(path)]) for path in paths)
  assert good == 0
  assert all(refused), refused


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (
      GOOD + 'or\t-5\n',
      r"the line 6 'or\\t-5'; expected an id of 0 to 9, as the",
    ),
    (GOOD + 'or\t10\n', 'expected an id of 0 to 9, as the vocab_size .* is 10'),
  ],
)
def test_what_gives_wrong_ids_is_refused(check, text, message):
  with pytest.raises(errors.UserError, match=message):
    check(text, vocab_size=10)


def test_a_folder_is_no_vocabulary(check, tmp_path):
  with pytest.raises(errors.UserError, match='is a folder; expected a file'):
    check(None, token_vocab_filepath=str(tmp_path))


@pytest.mark.parametrize(
  'text', [GOOD.replace('<UNK>', '<unk>'), LOWER + '<S>\t6\n']
)
def test_what_lingvo_refuses_without_ending_the_process(check, text):
  tf = lingvo_runtime.module('tensorflow')
  tokenizer = check(GOOD)
  with open(tokenizer.token_vocab_filepath, 'w') as file:
    file.write(text)
  made = tokenizer.Set(name='tokenizer').Instantiate()
  with pytest.raises(tf.errors.InvalidArgumentError, match='in the vocab'):
    made.StringsToIds(tf.constant(['to be']), 4)


def test_an_oddity_is_a_warning(check, log):
  check(SCORES)
  assert 'has 3 lines with a number that is not whole' in log()
  check(GOOD + 'be\t6\nto\t7\n')
  assert 'has 2 lines with an id for a token that has one already' in log()
  check(GOOD.replace('<S>\t1\n', ''))
  assert 'lacks <S> and <s>: Lingvo takes the id 0' in log()
  check('\ufeffor\t6\n' + GOOD)
  assert 'has a byte order mark, which is part of its first token' in log()


def test_bytes_that_an_editor_does_not_show_are_named(check):
  with pytest.raises(errors.UserError, match=r"lines that end with '\\r\\n'"):
    check(
      PLAIN.replace('\n', '\r\n'),
      load_token_ids_from_vocab=False,
    )
  with pytest.raises(errors.UserError, match='It has a byte order mark'):
    check('\ufeff' + LOWER)


def test_a_pattern_of_one_file(check, tmp_path):
  pattern = str(tmp_path / 'vo*')
  check(GOOD, token_vocab_filepath=pattern)
  (tmp_path / 'vocab2.txt').write_text(GOOD)
  with pytest.raises(errors.UserError, match='matches 2 files'):
    check(GOOD, token_vocab_filepath=pattern)


def test_tokens_may_share_an_id(check, log):
  check(GOOD + 'or\t5\nand\t5\n')
  assert 'has 2 tokens with the id of another one' in log()


def test_words_of_byte_pairs(check, tmp_path):
  tf = lingvo_runtime.tensorflow()
  codes = tmp_path / 'codes'
  codes.write_text('')
  kind = ('BpeTokenizer', 'words_to_ids_filepath')
  good = check('to 4,5\n\nbe 6\n', *kind, codes_filepath=str(codes))
  found, *_ = (
    good.Set(name='bpe').Instantiate().StringsToIds(tf.constant(['to be']), 5)
  )
  np.testing.assert_array_equal(found, [[1, 4, 5, 6, 2]])
  for line in ('or', 'or,7', 'or\t7', 'or 7 8', 'or 7,x', 'or -7', 'or 64,99'):
    expected = r'has the line 2 .*; expected a word, a blank, and its ids'
    with pytest.raises(errors.UserError, match=expected):
      check(f'to 4,5\n{line}\n', *kind, vocab_size=80)
  with pytest.raises(errors.UserError, match='codes.no. does not exist'):
    check('to 4\n', *kind, codes_filepath=f'{codes}.no')


def test_word_pieces(check, log):
  kind = ('WpmTokenizer', 'vocab_filepath')
  check('<unk>\n<s>\n</s>\nt\no\n', *kind, vocab_size=5)
  check('<unk>\t1\n<s>\t2\n</s>\t3\nt\nt\n', *kind)
  assert 'has 1 word pieces twice' in log()
  for text, message in [
    (
      't\no\n',
      'has <unk> nowhere; expected it on line 1, as tokenizer.target_',
    ),
    ('<unk>\n</s>\n<s>\n', 'has <s> on line 3; expected it on line 2'),
    ('<unk>\n<s>\n</s>\nt\no\nb\n', 'has 6 word pieces; expected at most .* 5'),
    (b'<unk>\n<s>\n</s>\n\xff\n', 'has the line 4 .*; expected UTF-8'),
  ]:
    with pytest.raises(errors.UserError, match=message):
      check(text, *kind, vocab_size=5)


def test_models_of_sentence_pieces(check):
  kind = ('SentencePieceTokenizer', 'spm_model')
  with pytest.raises(errors.UserError, match='is not a SentencePiece model'):
    check('<unk>\n<s>\n', *kind)


@pytest.mark.parametrize('evaluates', [False, True])
def test_inputs_have_their_vocabularies_checked(tmp_path, evaluates):
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  path = tmp_path / 'vocab.txt'
  path.write_text(PLAIN)
  tokenizer = tokenizers.VocabFileTokenizer.Params().Set(
    token_vocab_filepath=str(path)
  )
  pattern = testing.write_lines(tmp_path / 'a.txt', ['to be'])
  params = testing.lm_params(pattern, tokenizer=tokenizer)
  cls, fields = input_adaptor.LingvoInputAdaptor, {'is_training': True}
  if evaluates:
    cls = eval_adaptors.LingvoEvalAdaptor
    fields = {'batch_size': 2, 'reset_for_eval': True}
  with pytest.raises(errors.UserError, match=f'{path}.* has the line 1'):
    cls(input=params, **fields)


def test_records_of_ids_need_no_ids_in_the_vocabulary(tmp_path, log):
  """WMT's files are word pieces alone; Lingvo decodes with their lines."""
  tf = lingvo_runtime.module('tensorflow')
  inputs = lingvo_runtime.module('lingvo.tasks.mt.input_generator')
  path = tmp_path / 'wpm-ende.voc'
  path.write_text(PLAIN.lower())
  params = inputs.NmtInput.Params()
  params.tokenizer.token_vocab_filepath = str(path)
  vocabulary_checks.check_vocabularies('Train', params)
  params.tokenizer.Set(name='tokenizer')
  texts = params.tokenizer.Instantiate().IdsToStrings(
    tf.constant([[3, 4]]), tf.constant([2])
  )
  assert texts.numpy().tolist() == [b'to be']
  assert 'vocabulary' not in log()
  path.write_text('to\nbe\n')
  vocabulary_checks.check_vocabularies('Train', params)
  assert 'No text can be made of ids' in log()


def test_code_that_splits_text_is_found():
  lm = lingvo_runtime.module('lingvo.tasks.lm.input_generator')
  mt = lingvo_runtime.module('lingvo.tasks.mt.input_generator')

  class Own(mt.NmtInput):
    """Splits text in a function within a method."""

    def _InputBatch(self):
      return (lambda text: self.StringsToIds(text))('')

  assert vocabulary_checks.splits_text(lm.LmInput)
  assert vocabulary_checks.splits_text(Own)
  assert not vocabulary_checks.splits_text(mt.NmtInput)


def test_ops_that_split_text_are_checked_before_they_run(tmp_path):
  """Whatever the Params say of them."""
  tf = lingvo_runtime.module('tensorflow')
  ops = lingvo_runtime.module('lingvo.core.ops')
  path = tmp_path / 'vocab.txt'
  path.write_text(PLAIN)
  with tf.Graph().as_default() as graph:
    ops.str_to_vocab_tokens(
      tf.constant(['to be']),
      maxlen=4,
      vocab_filepath=str(path),
      load_token_ids_from_vocab=True,
    )
  nodes = graph.as_graph_def().node
  with pytest.raises(errors.UserError, match='own: the .* has the line 1'):
    token_vocabularies.check_ops('own', nodes)
  path.write_text(GOOD)
  token_vocabularies.check_ops('own', nodes)
