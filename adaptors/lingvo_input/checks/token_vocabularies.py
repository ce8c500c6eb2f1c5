"""The rules of Lingvo's native reader of token vocabularies.

A line is a token, and with ids a tab and a number. The native code ends the
process at a line without a number. It takes what the line begins with for the
id, so `0.37`, a score, is the id 0, and of a token on two lines the last one.
Its special tokens are in lower case if there is `<s>`, and in capitals if not.

Text is split by `StrToVocabTokens`, with the ids of the file or the numbers of
its lines. Ids become text by `NgramIdToToken`, always with the numbers of the
lines. So an input whose records are ids never has the file read by the first.
"""

import codecs
import dataclasses
import re
from collections.abc import Iterable, Iterator

from absl import logging

from adaptors import lingvo_runtime
from pax_compat import errors

_LOWER = (b'<s>', b'</s>', b'<unk>')
_UPPER = (b'<S>', b'</S>', b'<UNK>')

# As C++ reads an int32 at the start of a string.
_NUMBER = re.compile(rb'[ \r\v\f]*([+-]?[0-9]+)')
_BOM = (
  'a byte order mark, which is part of its first token; save it as UTF-8'
  ' without one'
)
_SMALLEST, _LARGEST = -(2**31), 2**31 - 1


@dataclasses.dataclass
class Vocabulary:
  """What Lingvo reads from a file.

  Attributes:
    ids: of each token, that of its last line.
    lines: number of the line of each token's id, from 1.
    num_repeated: number of lines with a token that an earlier line has, too,
      with another id.
    num_shared: number of tokens with the id of another one.
    num_inexact: number of lines whose number is not a whole one.
  """

  ids: dict[bytes, int] = dataclasses.field(default_factory=dict)
  lines: dict[bytes, int] = dataclasses.field(default_factory=dict)
  num_repeated: int = 0
  num_shared: int = 0
  num_inexact: int = 0


def read_bytes(path: str) -> bytes:
  """Returns the content of a file."""
  with lingvo_runtime.tensorflow().io.gfile.GFile(path, 'rb') as f:
    return f.read()


def lines_of(content: bytes) -> Iterator[tuple[int, bytes]]:
  """Yields the number of each line that is not empty, from 1, and the line.

  Only a line feed ends a line: carriage returns belong to it.
  """
  for number, line in enumerate(content.split(b'\n'), 1):
    if line:
      yield number, line


def wrong_line(
  where: str, number: int, line: bytes, expected: str
) -> errors.UserError:
  """Returns the error of a line."""
  text = line.decode('utf-8', errors='replace')
  return errors.UserError(f'{where} has the line {number} {text!r}; {expected}')


def read(where: str, path: str, *, has_ids: bool) -> Vocabulary:
  """Returns a vocabulary as Lingvo reads it.

  Args:
    where: the name of the file, in messages.
    path: the file.
    has_ids: whether ids are in the second column. If not, they are the numbers
      of the lines that are not empty, from 0.

  Raises:
    UserError: Lingvo's op would end the process, or raise.
  """
  vocabulary = Vocabulary()
  ids = vocabulary.ids
  content = read_bytes(path)
  for index, (number, line) in enumerate(lines_of(content)):
    token, *columns = line.split(b'\t')
    found = index
    if has_ids:
      found, is_exact = _number(where, number, line, columns)
      vocabulary.num_inexact += not is_exact
    vocabulary.num_repeated += ids.get(token, found) != found
    ids[token], vocabulary.lines[token] = found, number
  vocabulary.num_shared = len(ids) - len(set(ids.values()))
  _check_special(where, ids)
  if content.startswith(codecs.BOM_UTF8):
    logging.warning('%s has %s', where, _BOM)
  return vocabulary


def _number(
  where: str, number: int, line: bytes, columns: list[bytes]
) -> tuple[int, bool]:
  """Returns the id of a line, and whether it is the whole column."""
  match = _NUMBER.match(columns[0]) if columns else None
  if match is None:
    raise wrong_line(
      where,
      number,
      line,
      'expected a token, a tab and its id (load_token_ids_from_vocab=False'
      ' takes the numbers of the lines)',
    )
  found = int(match[1])
  if not _SMALLEST <= found <= _LARGEST:
    raise wrong_line(where, number, line, f'expected an id of 0 to {_LARGEST}')
  return found, not columns[0][match.end() :].strip()


def _check_special(where: str, ids: dict[bytes, int]):
  """Checks the tokens for the start, the end, and what is unknown."""
  is_lower = _LOWER[0] in ids
  expected, others = (_LOWER, _UPPER) if is_lower else (_UPPER, _LOWER)
  missing = [t for t in expected if t not in ids]
  if missing == [_UPPER[0]]:
    logging.warning('%s lacks <S> and <s>: Lingvo takes the id 0 for it', where)
    missing = []
  if missing:
    raise errors.UserError(
      f'{where} lacks {_names(missing)}, which every vocabulary has (all of'
      f' {_names(_UPPER)}, or all of {_names(_LOWER)}){_hidden(ids)}'
    )
  mixed = [t for t in others if t in ids]
  if mixed:
    raise errors.UserError(
      f'{where} has {_names(mixed)} beside {_names(expected)}; expected either'
      ' capitals or lower case'
    )


def _hidden(ids: Iterable[bytes]) -> str:
  """Returns which bytes of tokens an editor does not show; '' for none."""
  tokens = list(ids)
  found = []
  if any(token.endswith(b'\r') for token in tokens):
    found.append(
      "lines that end with '\\r\\n', whose '\\r' is part of the token"
    )
  if any(token.startswith(codecs.BOM_UTF8) for token in tokens):
    found.append(_BOM)
  return f'. It has {" and ".join(found)}' if found else ''


def _names(tokens: Iterable[bytes]) -> str:
  return ', '.join(sorted(token.decode() for token in tokens))


def only_file(where: str, pattern: str) -> str:
  """Returns the only file that a pattern of a vocabulary matches.

  Raises:
    UserError: there is none, or several.
  """
  gfile = lingvo_runtime.tensorflow().io.gfile
  paths = [pattern] if gfile.exists(pattern) else gfile.glob(pattern)
  if not paths:
    raise errors.UserError(f'{where} does not exist')
  if len(paths) > 1:
    raise errors.UserError(
      f'{where} matches {len(paths)} files, such as {paths[0]}; expected one'
    )
  return paths[0]


# Files that were found to be good, with the time of their last change.
_good: set[tuple] = set()


def check_ops(name: str, nodes: Iterable):
  """Checks the files of the ops that split text, before one of them runs.

  Args:
    name: of the input, in messages.
    nodes: of its graph, as NodeDefs.

  Raises:
    UserError: an op would end the process, or raise.
  """
  gfile = lingvo_runtime.tensorflow().io.gfile
  for node in nodes:
    if node.op != 'StrToVocabTokens':
      continue
    pattern = node.attr['vocab_filepath'].s.decode()
    has_ids = node.attr['load_token_ids_from_vocab'].b
    where = f'{name}: the vocabulary {pattern!r}'
    path = only_file(where, pattern)
    stat = gfile.stat(path)
    key = (path, stat.mtime_nsec, stat.length, has_ids)
    if key not in _good:
      read(where, path, has_ids=has_ids)
      _good.add(key)
