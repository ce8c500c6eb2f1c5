"""Tests of `lm_tasks.python_docs_text`, on the text of this Python."""

import collections
import math
import pathlib
import subprocess
import sys

import pytest

from lm_tasks import python_docs_text
from pax_compat import errors

TOPICS = {
  'heading': 'The "if" statement\n*******\n\nIt is used\nfor  tests.',
  'quoted': 'It is used\nfor tests.\n\nA “quote” — and more…',
  'table': '+---+---+\n| a | 1 |\n+---+---+',
  'foreign': 'Straße\n\nnot foreign',
}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> pathlib.Path:
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  return tmp_path


def _all_lines(corpus) -> list[str]:
  return [line for lines in corpus.splits.values() for line in lines]


def test_files_have_one_example_per_line(cache):
  for split, path in python_docs_text.files().items():
    assert cache in pathlib.Path(path).parents
    lines = pathlib.Path(path).read_text(encoding='ascii').split('\n')
    assert lines.pop() == ''
    assert tuple(lines) == python_docs_text.corpus().splits[split]


def test_lines_are_short_normalised_and_distinct():
  lines = _all_lines(python_docs_text.corpus())
  assert len(lines) == len(set(lines))
  for line in lines:
    assert 0 < len(line) <= python_docs_text.MAX_CHARACTERS
    assert line.isascii() and line.isprintable()
    assert line == ' '.join(line.split())


def test_no_line_has_a_special_token_of_the_tokenizer():
  special = '<unk> <noise> <s> </s> <epsilon> <text_only> <sorw>'.split()
  for line in _all_lines(python_docs_text.corpus()):
    assert not any(token in line.lower() for token in special), line


def test_splits_are_big_enough():
  counts = {s: len(x) for s, x in python_docs_text.corpus().splits.items()}
  assert counts['train'] > 0.8 * sum(counts.values())
  assert counts['dev'] >= 200
  assert counts['test'] >= 200


def test_a_damaged_file_is_written_again(cache):
  path = pathlib.Path(python_docs_text.files()['dev'])
  whole = path.read_bytes()
  path.write_bytes(whole[:100])
  assert python_docs_text.files()['dev'] == str(path)
  assert path.read_bytes() == whole
  assert sorted(p.name for p in path.parent.iterdir()) == [
    'dev.txt',
    'test.txt',
    'train.txt',
  ]


def test_concurrent_processes_agree(cache):
  code = 'from lm_tasks import python_docs_text as t; print(t.files())'
  running = [
    subprocess.Popen(
      [sys.executable, '-c', code], stdout=subprocess.PIPE, text=True
    )
    for _ in range(3)
  ]
  printed = [process.communicate()[0] for process in running]
  assert [process.returncode for process in running] == [0, 0, 0]
  assert set(printed) == {f'{python_docs_text.files()}\n'}


def test_a_folder_that_cannot_be_written_is_named(cache, monkeypatch):
  taken = cache / 'taken'
  taken.write_text('a file where the folder should be')
  monkeypatch.setenv('XDG_CACHE_HOME', str(taken))
  with pytest.raises(errors.UserError, match='taken.*XDG_CACHE_HOME'):
    python_docs_text.files()


def test_description_is_the_loss_of_letter_frequencies():
  description = python_docs_text.describe('train')
  lines = python_docs_text.corpus().splits['train']
  letters = collections.Counter(c for line in lines for c in line.lower())
  letters['end'] = len(lines)
  shares = [n / letters.total() for n in letters.values()]
  entropy = -sum(share * math.log(share) for share in shares)
  assert description.lines == len(lines)
  assert description.characters == letters.total() - len(lines)
  # The description adds one to each token's count.
  assert description.unigram_nats == pytest.approx(entropy, rel=1e-3)
  assert python_docs_text.describe('dev').unigram_nats < math.log(76)


def test_split_topics_cleans_the_text():
  corpus = python_docs_text.split_topics(TOPICS)
  assert sorted(_all_lines(corpus)) == sorted(
    [
      'The "if" statement',
      'It is used for tests.',
      'A "quote" -- and more...',
      '| a | 1 |',
      'not foreign',
    ]
  )
  assert (corpus.replaced, corpus.dropped) == (4, 1)


def test_split_topics_keeps_a_topic_together():
  topics = {f't{i}': f'{i} one.\n\n{i} two.' for i in range(100)}
  corpus = python_docs_text.split_topics(topics)
  owners = [
    {line.split()[0] for line in lines} for lines in corpus.splits.values()
  ]
  assert sum(map(len, owners)) == 100
  assert [len(lines) for lines in corpus.splits.values()] == [168, 16, 16]
  # The split depends on the topics, not on their order.
  backwards = dict(reversed(topics.items()))
  assert python_docs_text.split_topics(backwards) == corpus


def test_long_paragraphs_end_with_a_sentence():
  sentence = 'word ' * 30 + 'end.'
  corpus = python_docs_text.split_topics({'t': f'{sentence} {sentence}'})
  assert _all_lines(corpus) == [sentence]
  long = 'word ' * 100 + 'x' * 300
  lines = _all_lines(python_docs_text.split_topics({'t': long}))
  assert ' '.join(lines).split()[:100] == ['word'] * 100
  assert ''.join(lines).count('x') == 300
