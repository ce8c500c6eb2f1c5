"""Numbers in English and German words: a parallel text without a download.

The order of the words differs ("forty-two", "zweiundvierzig"), so a model must
learn more than a word for a word. `PairsInput` is a template for your own pairs
of texts.

Legend: B pairs in a batch, T bytes of a source or target, with its end.
"""

import functools
from collections.abc import Sequence

import numpy as np

from pax_compat import errors
from pax_compat.config import REQUIRED
from pax_compat.inputs import indexed_input
from pax_compat.nested_map import NestedMap

# Texts are bytes. These three do not occur in them.
PADDING_ID, BEGIN_ID, END_ID = 0, 1, 2
VOCAB_SIZE = 256
# Numbers are smaller.
LIMIT = 10_000

_ONES = 'zero one two three four five six seven eight nine ten eleven twelve'
_EINS = 'null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf'
_TEENS = 'thirteen fourteen fifteen sixteen seventeen eighteen nineteen'
_ZEHN = 'dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn'
_TENS = 'twenty thirty forty fifty sixty seventy eighty ninety'.split()
_ZIG = 'zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig'.split()
_ENGLISH = f'{_ONES} {_TEENS}'.split()
_GERMAN = f'{_EINS} {_ZEHN}'.split()


def english(number: int) -> str:
  """Returns a number from 0 to 9999 in English words.

  >>> english(4342)
  'four thousand three hundred forty-two'
  """
  words = []
  for size, name in ((1000, 'thousand'), (100, 'hundred')):
    if number >= size:
      words += [_ENGLISH[number // size], name]
      number %= size
  if number >= 20:
    ones = f'-{_ENGLISH[number % 10]}' if number % 10 else ''
    words.append(_TENS[number // 10 - 2] + ones)
  elif number or not words:
    words.append(_ENGLISH[number])
  return ' '.join(words)


def german(number: int) -> str:
  """Returns a number from 0 to 9999 in German words.

  >>> german(4342), german(101)
  ('viertausenddreihundertzweiundvierzig', 'einhunderteins')
  """
  words = []
  for size, name in ((1000, 'tausend'), (100, 'hundert')):
    if number >= size:
      words += [_before(number // size), name]
      number %= size
  if number >= 20:
    ones = f'{_before(number % 10)}und' if number % 10 else ''
    words.append(ones + _ZIG[number // 10 - 2])
  elif number or not words:
    words.append(_GERMAN[number])
  return ''.join(words)


def _before(digit: int) -> str:
  """Returns a digit as it stands before another word."""
  return 'ein' if digit == 1 else _GERMAN[digit]


class PairsInput(indexed_input.IndexedInput):
  """Pairs of texts as bytes, for a `SequenceModel`.

  A subclass returns its pairs of a source and a target; for a file with tabs:

  >>> class TabsInput(PairsInput):
  ...   path: str = REQUIRED
  ...
  ...   @functools.cached_property
  ...   def pairs(self):
  ...     lines = open(self.path, encoding='utf-8').read().splitlines()
  ...     return [line.split('\\t') for line in lines]

  A batch is that of `batch`. Decoding reports `exact_match`, the fraction of
  targets that are decoded without an error.

  Attributes:
    seq_len: T; a longer text is an error.
  """

  seq_len: int = REQUIRED

  @property
  def pairs(self) -> Sequence[tuple[str, str]]:
    """The sources and their targets."""
    raise NotImplementedError(f'{type(self).__name__}.pairs')

  @property
  def num_examples(self) -> int:
    """The number of pairs."""
    return len(self.pairs)

  def examples(self, indices: np.ndarray) -> NestedMap:
    """Returns some of the pairs; see `batch`."""
    return batch([self.pairs[i] for i in indices], self.seq_len)

  def tokenizers(self) -> dict[str, str]:
    return {'src': 'bytes', 'tgt': 'bytes'}

  def ids_to_strings(self, ids, lengths, key=None) -> list[str]:
    del key
    return [
      bytes(int(i) for i in row[:length] if i > END_ID).decode(errors='replace')
      for row, length in zip(ids, lengths, strict=True)
    ]

  def has_example_metrics(self, kind: str) -> bool:
    return kind == 'decode'

  def example_metrics(self, kind, examples) -> dict[str, float]:
    del kind
    hits = [found['decoded'] == found['target'] for _, found in examples]
    return {'exact_match': float(np.mean(hits))}


class NumberWordsInput(PairsInput):
  """Numbers from 0 to 9999 in English and in German, each once.

  Attributes:
    split: `train`, or `test` for the numbers that are held out.
    num_test: how many are held out, the same ones always.
  """

  split: str = REQUIRED
  num_test: int = 256

  def __post_init__(self):
    super().__post_init__()
    self.check(
      self.split in ('train', 'test'),
      f'split of {self.name} is {self.split!r}; expected train or test',
    )

  @functools.cached_property
  def pairs(self) -> list[tuple[str, str]]:
    """The sources and their targets."""
    order = np.random.default_rng(0).permutation(LIMIT)
    is_test = self.split == 'test'
    chosen = order[: self.num_test] if is_test else order[self.num_test :]
    return [(english(n), german(n)) for n in chosen]


def batch(pairs: Sequence[tuple[str, str]], seq_len: int) -> NestedMap:
  """Returns pairs as a batch of a `SequenceModel`.

  >>> found = batch([('ten', 'zehn')], seq_len=6)
  >>> bytes(found.src.ids[0].tolist()), bytes(found.tgt.labels[0].tolist())
  (b'ten\\x02\\x00\\x00', b'zehn\\x02\\x00')

  Args:
    pairs: B sources and targets; a target that is to be decoded may be ''.
    seq_len: T.

  Returns:
    `src` and `tgt`, each with `ids` and `paddings` [B, T]; `tgt` also with
    `labels` and `weights` [B, T]. Its `ids` are the labels one step later.

  Raises:
    UserError: a text is longer than T.
  """
  sources, targets = zip(*pairs, strict=True)
  source, labels = (_tokens(texts, seq_len) for texts in (sources, targets))
  begin = np.full([len(pairs), 1], BEGIN_ID, np.int32)
  paddings = _paddings(labels)
  return NestedMap(
    src=NestedMap(ids=source, paddings=_paddings(source)),
    tgt=NestedMap(
      ids=np.concatenate([begin, labels[:, :-1]], axis=1) * (paddings == 0),
      labels=labels,
      paddings=paddings,
      weights=1 - paddings,
    ),
  )


def _tokens(texts: Sequence[str], seq_len: int) -> np.ndarray:
  """Returns the bytes of texts and their end [B, T], int32."""
  ids = np.full([len(texts), seq_len], PADDING_ID, np.int32)
  for row, text in zip(ids, texts, strict=True):
    tokens = [*text.encode(), END_ID]
    if len(tokens) > seq_len:
      raise errors.UserError(
        f'seq_len is {seq_len}; expected at least {len(tokens)}, for {text!r}'
        ' and its end'
      )
    row[: len(tokens)] = tokens
  return ids


def _paddings(ids: np.ndarray) -> np.ndarray:
  return (ids == PADDING_ID).astype(np.float32)
