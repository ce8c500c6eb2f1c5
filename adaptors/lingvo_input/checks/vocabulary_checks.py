"""Checks of vocabulary files, before a reader starts.

Lingvo's native ops end the process at some wrong files, and silently return
wrong ids with others.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.lingvo_input.checks import token_vocabularies
from adaptors.params import params_trees
from pax_compat import errors

# Required word pieces, and the field that has the id of each.
_NEEDED_PIECES = {
  '<unk>': 'target_unk_id',
  '<s>': 'target_sos_id',
  '</s>': 'target_eos_id',
}

_LARGEST_ID = 2**31 - 1

# Where Lingvo defines the methods that split text, which an input calls.
_BASES = 'lingvo.core.base_input_generator'
_SPLITS_TEXT = 'StringsToIds'

_ML_PERF = 'lingvo.core.ml_perf_tokenizer.MlPerfTokenizer'


def check_vocabularies(name: str, params: Any):
  """Checks the vocabulary files of an input's tokenizers.

  Args:
    name: of the input, in messages.
    params: Lingvo Params of the input; not changed.

  Raises:
    UserError: a file does not exist or has another format, a line has no id, an
      id is out of range, or a required token is missing.
  """
  cls = getattr(params, 'cls', None)
  for tokenizer in _tokenizers(params):
    for field, check in _CHECKS.items():
      path = getattr(tokenizer, field, None)
      if path:
        where = f'{name}: the vocabulary {path!r}'
        path = _file(where, path)
        if check is _check_tokens and not splits_text(cls):
          check = _check_decoding
        check(where, path, tokenizer)


def splits_text(cls: type | None) -> bool:
  """Returns whether an input's code has its tokenizer split text.

  If not, its records are ids, and vocabularies only make text of them.

  Args:
    cls: of the input; None if unknown.
  """
  if cls is None:
    return True
  functions = (
    function
    for parent in cls.__mro__
    if parent.__module__ != _BASES
    for function in vars(parent).values()
  )
  return any(_names_it(getattr(f, '__func__', f)) for f in functions)


def _names_it(function: Any) -> bool:
  """Returns whether a function, or one within it, names what splits text."""
  pending = [getattr(function, '__code__', None)]
  while pending:
    code = pending.pop()
    if not inspect.iscode(code):
      continue
    if any(name.startswith(_SPLITS_TEXT) for name in code.co_names):
      return True
    pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]
  return False


def _tokenizers(params) -> Iterator[Any]:
  several = getattr(params, 'tokenizer_dict', None) or {}
  for tokenizer in (getattr(params, 'tokenizer', None), *several.values()):
    if tokenizer is not None:
      yield tokenizer


def _file(where: str, pattern: str) -> str:
  path = token_vocabularies.only_file(where, pattern)
  if lingvo_runtime.tensorflow().io.gfile.isdir(path):
    raise errors.UserError(f'{where} is a folder; expected a file')
  return path


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
  """Yields the number of each line, from 1, and the line."""
  with lingvo_runtime.tensorflow().io.gfile.GFile(path, 'rb') as f:
    for number, line in enumerate(f, 1):
      yield number, line.rstrip(b'\r\n')


def vocab_size(tokenizer: Any) -> int | None:
  """Returns the `vocab_size` that was set for a tokenizer; None if unset.

  The default does not describe any file.
  """
  size = getattr(tokenizer, 'vocab_size', 0)
  default = getattr(tokenizer.cls.Params(), 'vocab_size', 0)
  return size if size and size != default else None


def _check_tokens(where: str, path: str, tokenizer):
  """Checks a vocabulary that text is split by."""
  has_ids = tokenizer.load_token_ids_from_vocab
  found = token_vocabularies.read(where, path, has_ids=has_ids)
  size = vocab_size(tokenizer)
  limit = _LARGEST_ID + 1 if size is None else size
  for token, its_id in found.ids.items():
    if not 0 <= its_id < limit:
      why = f'expected an id of 0 to {limit - 1}'
      if size is not None:
        why += f', as the vocab_size of the tokenizer is {limit}'
      line = token + (b'\t%d' % its_id if has_ids else b'')
      number = found.lines[token]
      raise token_vocabularies.wrong_line(where, number, line, why)
  for count, what in (
    (found.num_shared, 'tokens with the id of another one'),
    (
      found.num_repeated,
      'lines with an id for a token that has one already; the last one counts',
    ),
    (
      found.num_inexact,
      'lines with a number that is not whole, such as a'
      ' score; what is in front of the point is the id',
    ),
  ):
    if count:
      logging.warning('%s has %d %s', where, count, what)


def _check_decoding(where: str, path: str, tokenizer):
  """Logs a warning if ids cannot become text by a vocabulary.

  Records of the input are ids: nothing else is done with it.
  """
  del tokenizer
  try:
    token_vocabularies.read(where, path, has_ids=False)
  except errors.UserError as e:
    logging.warning('%s. No text can be made of ids', e)


def _check_words(where: str, path: str, tokenizer):
  """Checks lines of a word, a blank, and ids separated by commas."""
  limit = vocab_size(tokenizer) or _LARGEST_ID + 1
  for number, line in _lines(path):
    columns = line.split(b' ')
    ids = columns[1].split(b',') if len(columns) == 2 else []
    is_wrong = not ids or not all(x.isdigit() and int(x) < limit for x in ids)
    if line and is_wrong:
      why = (
        'expected a word, a blank, and its ids joined by commas, of 0 to'
        f' {limit - 1}'
      )
      raise token_vocabularies.wrong_line(where, number, line, why)


def _check_pieces(where: str, path: str, tokenizer):
  """Checks lines of a word piece, whose ids are the numbers of the lines."""
  if params_trees.has_base(tokenizer.cls, _ML_PERF):
    _check_quoted_pieces(where, path)
    return
  ids: dict[str, int] = {}
  count = 0
  for number, line in _lines(path):
    try:
      ids.setdefault(line.decode('utf-8').strip().split('\t')[0], number - 1)
    except UnicodeDecodeError as e:
      raise token_vocabularies.wrong_line(
        where, number, line, 'expected UTF-8'
      ) from e
    count = number
  for piece, field in _NEEDED_PIECES.items():
    wanted = getattr(tokenizer, field)
    if ids.get(piece) != wanted:
      found = f'on line {ids[piece] + 1}' if piece in ids else 'nowhere'
      raise errors.UserError(
        f'{where} has {piece} {found}; expected it on line {wanted + 1}, as'
        f' tokenizer.{field} is {wanted}'
      )
  _check_count(where, count, 'word pieces', tokenizer)
  if len(ids) < count:
    logging.warning('%s has %d word pieces twice', where, count - len(ids))


def _check_quoted_pieces(where: str, path: str):
  """Checks lines of a word piece in quotes, of an MlPerfTokenizer."""
  content = token_vocabularies.read_bytes(path)
  for number, line in token_vocabularies.lines_of(content):
    if len(line) < 3:  # Lingvo ends the process at it.
      raise token_vocabularies.wrong_line(
        where, number, line, 'expected a word piece in quotes'
      )


def _check_sentence_pieces(where: str, path: str, tokenizer):
  """Checks a SentencePiece model."""
  tf = lingvo_runtime.tensorflow()
  text = lingvo_runtime.module('tensorflow_text')
  with tf.io.gfile.GFile(path, 'rb') as f:
    model = f.read()
  try:
    count = int(text.SentencepieceTokenizer(model=model).vocab_size())
  except (tf.errors.OpError, UnicodeDecodeError, RuntimeError) as e:
    raise errors.UserError(f'{where} is not a SentencePiece model') from e
  _check_count(where, count, 'pieces', tokenizer)


def _check_count(where: str, count: int, pieces: str, tokenizer):
  limit = vocab_size(tokenizer)
  if limit is not None and count > limit:
    raise errors.UserError(
      f'{where} has {count} {pieces}; expected at most the vocab_size of the'
      f' tokenizer, {limit}'
    )


def _check_nothing(where: str, path: str, tokenizer):
  """Accepts a file that is used for decoding only, and may have any lines."""


# The check of the file in each field of tokenizers.
_CHECKS: dict[str, Callable[[str, str, Any], None]] = {
  'token_vocab_filepath': _check_tokens,
  'ngram_vocab_filepath': _check_nothing,
  'words_to_ids_filepath': _check_words,
  'codes_filepath': _check_nothing,
  'vocab_filepath': _check_pieces,
  'spm_model': _check_sentence_pieces,
}
