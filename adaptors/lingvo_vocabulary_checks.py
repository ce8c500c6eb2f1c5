"""What is wrong with a vocabulary file, found before a reader starts.

Lingvo's native `StrToVocabTokens` ends the process over such a file.
"""

from collections.abc import Iterator
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import errors

# Tokens that every vocabulary has: beginning, end, and what is not in it.
_NEEDED = ('<S>', '</S>', '<UNK>')


def check_vocabularies(name: str, params: Any):
  """Checks the vocabulary files of an input's tokenizers.

  Args:
    name: how messages call the input.
    params: Lingvo Params of the input; not changed.

  Raises:
    UserError: a file is not there, a line has no id, or a token that is needed
      is missing.
  """
  for tokenizer in _tokenizers(params):
    path = getattr(tokenizer, 'token_vocab_filepath', None)
    if path:
      _check_file(name, path, tokenizer.load_token_ids_from_vocab)


def _tokenizers(params) -> Iterator[Any]:
  several = getattr(params, 'tokenizer_dict', None) or {}
  for tokenizer in (getattr(params, 'tokenizer', None), *several.values()):
    if tokenizer is not None:
      yield tokenizer


def _check_file(name: str, path: str, has_ids: bool):
  tf = lingvo_runtime.module('tensorflow')
  where = f'{name}: the vocabulary {path!r}'
  if not tf.io.gfile.exists(path):
    raise errors.UserError(f'{where} does not exist')
  missing = set(_NEEDED)
  with tf.io.gfile.GFile(path, 'r') as f:
    for number, line in enumerate(f, 1):
      token, *columns = line.rstrip('\n').split('\t')
      missing.discard(token)
      is_wrong = not columns or not columns[0].lstrip('-').isdigit()
      if has_ids and line.strip() and is_wrong:
        raise errors.UserError(
          f'{where} has the line {number} {line.rstrip()!r}; expected a token,'
          ' a tab and its id (load_token_ids_from_vocab=False takes the numbers'
          ' of the lines)'
        )
  if missing:
    raise errors.UserError(
      f'{where} lacks {", ".join(sorted(missing))}, which every vocabulary has'
    )
