"""The reference documentation that comes with CPython, as lines of text.

Every Python has it (`pydoc_data.topics`, about 460,000 characters), so an
experiment on real text runs without a download. The text differs between
Python versions; its cache folder is named by a hash of it.

A paragraph becomes one line, or several that end with a sentence if possible.
Lines are unique, and no topic is in two splits.

The number of words of a line bounds its characters (`SIZES`), so that lines in
a bucket of Lingvo's `LmInput`, which buckets by words, have similar lengths.
"""

import collections
import dataclasses
import functools
import hashlib
import importlib
import math
import pathlib
import re
import textwrap

from absl import logging

from pax_compat import errors
from pax_compat.runs import files as files_lib

# (w, c): a line of at most w words has at most c characters.
SIZES = ((8, 63), (18, 127), (60, 255))
MAX_CHARACTERS = SIZES[-1][1]
SPLITS = ('train', 'dev', 'test')

# The fraction of lines in dev and in test, about 200 lines each.
_HELD_OUT_SHARE = 0.08

# Replacements of non-ASCII characters.
_REPLACED = {
  '\u2018': "'",
  '\u2019': "'",
  '\u201c': '"',
  '\u201d': '"',
  '\u2013': '-',
  '\u2014': '--',
  '\u2026': '...',
}
_SENTENCE_END = re.compile(r'(?<=[.:;!?]) ')
_LETTER_OR_DIGIT = re.compile('[a-zA-Z0-9]')

# A character model predicts the characters and one end of sequence per line.
_END_OF_LINE = '\n'
# Vocabulary size of Lingvo's AsciiTokenizer.
_VOCAB_SIZE = 76


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The text.

  Attributes:
    splits: the lines of each split.
    replaced: number of replaced non-ASCII characters.
    dropped: number of lines dropped because of other non-ASCII characters.
  """

  splits: dict[str, tuple[str, ...]]
  replaced: int
  dropped: int


@dataclasses.dataclass(frozen=True)
class Description:
  """The size of a split, and a baseline loss.

  Attributes:
    lines: number of lines.
    characters: number of characters, without line ends.
    unigram_nats: the mean loss in nats per predicted character (with line ends,
      letters in lower case) of a unigram model fitted to the train split.
  """

  lines: int
  characters: int
  unigram_nats: float


def files() -> dict[str, str]:
  """Returns the path of each split's file; writes missing files.

  The files are in `$XDG_CACHE_HOME/pax_compat` (`~/.cache/pax_compat`).
  Concurrent processes may call this.

  Raises:
    UserError: this Python comes without its documentation, or the folder
      cannot be written.
  """
  splits = corpus().splits
  digest = hashlib.sha256(repr(sorted(splits.items())).encode()).hexdigest()
  folder = files_lib.user_cache() / 'python_docs_text' / digest[:16]
  paths = {split: folder / f'{split}.txt' for split in SPLITS}
  try:
    folder.mkdir(parents=True, exist_ok=True)
    for split, path in paths.items():
      _write_once(path, ''.join(f'{line}\n' for line in splits[split]))
  except OSError as error:
    raise errors.UserError(
      f'cannot write the text to {folder}: {error}; set the environment'
      ' variable XDG_CACHE_HOME to another cache folder'
    ) from error
  logging.log_first_n(logging.INFO, '%s', 1, _summary(folder))
  return {split: str(path) for split, path in paths.items()}


def describe(split: str) -> Description:
  """Returns the size of a split and its unigram loss."""
  lines = corpus().splits[split]
  known = _character_counts(corpus().splits['train'])
  seen = _character_counts(lines)
  # Add-one smoothing, so that characters unseen in train have finite loss.
  total = known.total() + _VOCAB_SIZE
  nats = sum(n * math.log(total / (known[c] + 1)) for c, n in seen.items())
  return Description(
    lines=len(lines),
    characters=sum(map(len, lines)),
    unigram_nats=nats / seen.total(),
  )


@functools.cache
def corpus() -> Corpus:
  """Returns the text of this Python's documentation, split.

  Raises:
    UserError: this Python comes without its documentation.
  """
  try:
    topics = importlib.import_module('pydoc_data.topics').topics
  except ImportError as error:
    raise errors.UserError(
      'this Python comes without its documentation (pydoc_data.topics), which'
      f' is the text of this experiment: {error}'
    ) from error
  return split_topics(topics)


def split_topics(topics: dict[str, str]) -> Corpus:
  """Turns topics into lines, and assigns each topic to a split.

  Args:
    topics: the text of each topic, by name.

  Returns:
    The corpus. It depends on the topics only.
  """
  lines = {topic: _lines(_ascii(text)) for topic, text in topics.items()}
  kept, dropped = _distinct_ascii(lines)
  owner = _assign({topic: len(lines) for topic, lines in kept.items()})
  return Corpus(
    splits={
      split: tuple(
        line for t in sorted(kept) if owner[t] == split for line in kept[t]
      )
      for split in SPLITS
    },
    replaced=sum(text.count(c) for text in topics.values() for c in _REPLACED),
    dropped=dropped,
  )


def _ascii(text: str) -> str:
  return text.translate(str.maketrans(_REPLACED))


def _lines(text: str) -> list[str]:
  """Returns the lines of one topic, without rulers and table borders."""
  lines = []
  for paragraph in re.split(r'\n\s*\n', text):
    rows = [
      row for row in paragraph.split('\n') if _LETTER_OR_DIGIT.search(row)
    ]
    lines += _wrap(' '.join(' '.join(rows).split()))
  return lines


def _wrap(paragraph: str) -> list[str]:
  """Splits a paragraph into lines that end with a sentence if possible."""
  lines = ['']
  for sentence in _SENTENCE_END.split(paragraph):
    # A sentence that is too long is split between words.
    for piece in textwrap.wrap(
      sentence, MAX_CHARACTERS, break_on_hyphens=False
    ):
      joined = f'{lines[-1]} {piece}'.strip()
      if len(joined) <= MAX_CHARACTERS:
        lines[-1] = joined
      else:
        lines.append(piece)
  return [piece for line in lines if line for piece in _fitting(line.split())]


def _fitting(words: list[str]) -> list[str]:
  """Returns words as a line, halved until each line fits `SIZES`."""
  line = ' '.join(words)
  limits = [chars for most, chars in SIZES if len(words) <= most]
  if limits and len(line) <= limits[0] or len(words) == 1:
    return [line]
  half = len(words) // 2
  return _fitting(words[:half]) + _fitting(words[half:])


def _distinct_ascii(
  lines: dict[str, list[str]],
) -> tuple[dict[str, list[str]], int]:
  """Removes repeated lines and lines that are not ASCII.

  Topics quote each other; without this, held-out lines would also be in train.

  Returns:
    The lines of each topic, and the number of lines that are not ASCII.
  """
  seen, dropped, kept = set(), 0, {}
  for topic in sorted(lines):
    kept[topic] = []
    for line in lines[topic]:
      if line in seen:
        continue
      seen.add(line)
      if line.isascii():
        kept[topic].append(line)
      else:
        dropped += 1
  return kept, dropped


def _assign(sizes: dict[str, int]) -> dict[str, str]:
  """Assigns topics, by hash order, to test and dev while there is room."""
  room = {s: _HELD_OUT_SHARE * sum(sizes.values()) for s in ('test', 'dev')}
  owner = {}
  for topic in sorted(sizes, key=_hash):
    fits = [split for split in room if sizes[topic] <= room[split]]
    owner[topic] = fits[0] if fits else 'train'
    if fits:
      room[fits[0]] -= sizes[topic]
  return owner


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()


def _character_counts(lines: tuple[str, ...]) -> collections.Counter:
  return collections.Counter(
    character for line in lines for character in line.lower() + _END_OF_LINE
  )


def _write_once(path: pathlib.Path, text: str):
  """Writes a file atomically, unless it already has this text."""
  content = text.encode()
  if path.exists():
    if path.read_bytes() == content:
      return
    logging.warning('%s was damaged; writing it again', path)
  files_lib.replace(path, content)


def _summary(folder: pathlib.Path) -> str:
  whole = corpus()
  sizes = ', '.join(
    f'{split} {d.lines} lines, {d.characters} characters,'
    f' {d.unigram_nats:.3f} nats from letter frequencies alone'
    for split, d in ((split, describe(split)) for split in SPLITS)
  )
  return (
    f'Python documentation in {folder}: {sizes}; {whole.replaced} characters'
    f' replaced by ASCII, {whole.dropped} lines dropped'
  )
