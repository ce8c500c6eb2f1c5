"""Checks of vocabulary files, before a reader starts.

Lingvo's native ops end the process at some wrong files, and silently return
wrong ids with others.
"""

from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from pax_compat import errors

# Tokens of every vocabulary: beginning, end, unknown.
_NEEDED = ('<S>', '</S>', '<UNK>')

# Required word pieces, and the field that has the id of each.
_NEEDED_PIECES = {
  '<unk>': 'target_unk_id',
  '<s>': 'target_sos_id',
  '</s>': 'target_eos_id',
}

_LARGEST_ID = 2**31 - 1


def check_vocabularies(name: str, params: Any):
  """Checks the vocabulary files of an input's tokenizers.

  Args:
    name: of the input, in messages.
    params: Lingvo Params of the input; not changed.

  Raises:
    UserError: a file does not exist or has another format, a line has no id, an
      id is out of range, a required token is missing, or one has two ids.
  """
  for tokenizer in _tokenizers(params):
    for field, check in _CHECKS.items():
      path = getattr(tokenizer, field, None)
      if path:
        where = f'{name}: the vocabulary {path!r}'
        _check_is_file(where, path)
        check(where, path, tokenizer)


def _tokenizers(params) -> Iterator[Any]:
  several = getattr(params, 'tokenizer_dict', None) or {}
  for tokenizer in (getattr(params, 'tokenizer', None), *several.values()):
    if tokenizer is not None:
      yield tokenizer


def _check_is_file(where: str, path: str):
  gfile = lingvo_runtime.tensorflow().io.gfile
  if not gfile.exists(path):
    raise errors.UserError(f'{where} does not exist')
  if gfile.isdir(path):
    raise errors.UserError(f'{where} is a folder; expected a file')


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
  """Yields the number of each line, from 1, and the line."""
  with lingvo_runtime.tensorflow().io.gfile.GFile(path, 'rb') as f:
    for number, line in enumerate(f, 1):
      yield number, line.rstrip(b'\r\n')


def _wrong_line(where: str, number: int, line: bytes, expected: str):
  text = line.decode('utf-8', errors='replace')
  return errors.UserError(f'{where} has the line {number} {text!r}; {expected}')


class _Ids:
  """The ids of a vocabulary, so far."""

  def __init__(self, where: str, tokenizer: Any):
    self._where = where
    self._limit = vocab_size(tokenizer)
    self._of: dict[bytes, tuple[int, int]] = {}
    self._tokens: dict[int, bytes] = {}
    self._repeated = 0

  def add(self, number: int, line: bytes, token: bytes, found: int):
    """Adds the id of a token.

    Raises:
      UserError: it is out of range, or the token has another id as well.
    """
    limit = _LARGEST_ID + 1 if self._limit is None else self._limit
    if not 0 <= found < limit:
      why = f'an id of 0 to {limit - 1}'
      if self._limit is not None:
        why += f', as the vocab_size of the tokenizer is {limit}'
      raise _wrong_line(self._where, number, line, f'expected {why}')
    before = self._of.setdefault(token, (found, number))
    if before[0] != found:
      why = f'but line {before[1]} has the id {before[0]} for the same token'
      raise _wrong_line(self._where, number, line, why)
    if self._tokens.setdefault(found, token) != token:
      self._repeated += 1

  def end(self, needed: tuple[bytes, ...]):
    """Checks the whole vocabulary, at the end of the file."""
    missing = sorted(t.decode() for t in needed if t not in self._of)
    if missing:
      raise errors.UserError(
        f'{self._where} lacks {", ".join(missing)}, which every vocabulary has'
      )
    if self._repeated:
      logging.warning(
        '%s has %d tokens with the id of another one',
        self._where,
        self._repeated,
      )


def vocab_size(tokenizer: Any) -> int | None:
  """Returns the `vocab_size` that was set for a tokenizer; None if unset.

  The default does not describe any file.
  """
  size = getattr(tokenizer, 'vocab_size', 0)
  default = getattr(tokenizer.cls.Params(), 'vocab_size', 0)
  return size if size and size != default else None


def _check_tokens(where: str, path: str, tokenizer):
  """Checks lines of a token, a tab and its id; or of a token."""
  has_ids = tokenizer.load_token_ids_from_vocab
  ids = _Ids(where, tokenizer)
  for number, line in _lines(path):
    token, *columns = line.split(b'\t')
    is_wrong = not columns or not columns[0].removeprefix(b'-').isdigit()
    if has_ids and line.strip() and is_wrong:
      raise _wrong_line(
        where,
        number,
        line,
        'expected a token, a tab and its id (load_token_ids_from_vocab=False'
        ' takes the numbers of the lines)',
      )
    if has_ids and line.strip():
      ids.add(number, line, token, int(columns[0]))
    elif not has_ids and token:
      ids.add(number, line, token, number - 1)
  ids.end(tuple(token.encode() for token in _NEEDED))


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
      raise _wrong_line(where, number, line, why)


def _check_pieces(where: str, path: str, tokenizer):
  """Checks lines of a word piece, whose ids are the numbers of the lines."""
  ids: dict[str, int] = {}
  count = 0
  for number, line in _lines(path):
    try:
      ids.setdefault(line.decode('utf-8').strip().split('\t')[0], number - 1)
    except UnicodeDecodeError as e:
      raise _wrong_line(where, number, line, 'expected UTF-8') from e
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
