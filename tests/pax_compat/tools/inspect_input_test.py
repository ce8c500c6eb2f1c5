"""Tests of `python -m pax_compat.tools.inspect_input`."""

import html.parser
import json

import pytest

from tests.pax_compat import trainer_runs

MODULE = 'tests.pax_compat.tools.words_experiment'


def _inspect(*more, exp=f'{MODULE}.Words', **words):
  return trainer_runs.forked(
    *('-m', 'pax_compat.tools.inspect_input', f'--exp={exp}', *more),
    WORDS=json.dumps(words),
  )


def test_data_is_shown(tmp_path):
  page = tmp_path / 'page.html'
  done = _inspect(f'--html={page}')
  assert done.returncode == 0, done.stdout + done.stderr
  lines = [' '.join(line.split()) for line in done.stdout.splitlines()]
  assert 'Train: training data' in lines
  assert 'Dev: evaluated on all of it' in lines
  assert 'src.ids int32[2, 4]' in lines
  assert (
    'batch 1: 2 of 2 examples count, 75% of src.ids is not padding' in lines
  )
  assert "[1] src.ids: '<script> a <script>'" in lines
  assert '[1] names: row 3 of <Train>' in lines
  shards = (
    '2 hosts read all data: 8 different examples, 0 of them by more than'
    ' one host, 0 more than once by one; batches of each: 2, 2'
  )
  assert lines.count(shards) == 2
  text = page.read_text()
  assert shards in text
  _check(text)


def _check(text: str):
  """Checks that a page is well-formed and that data is escaped in it."""
  open_tags, seen, classes = [], set(), set()

  class Parser(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
      seen.add(tag)
      classes.add(dict(attrs).get('class'))
      if tag != 'meta':
        open_tags.append(tag)

    def handle_endtag(self, tag):
      assert open_tags.pop() == tag

  Parser().feed(text)
  assert not open_tags
  assert 'script' not in seen and '&lt;script&gt;' in text
  assert {'token padding', 'token segment0', 'token segment1'} <= classes
  assert 'http' not in text


@pytest.mark.parametrize(
  ('words', 'warning'),
  [
    (
      dict(splits=False),
      'Dev: 2 hosts together read 8 more examples than one host that reads all'
      ' data',
    ),
    (
      dict(splits=False, rows=100),
      'Dev: 40 of 40 examples are read by more than one of 2 hosts',
    ),
    (
      dict(rows=6),
      'Dev: 2 examples of the data are read by none of 2 hosts',
    ),
    (dict(shift=-1), 'Dev: src.ids has negative ids'),
    (
      dict(vocabulary='others'),
      'the tokenizer src differs between Train and Dev',
    ),
  ],
)
def test_problems_of_data(words, warning):
  done = _inspect('--batches=1', **words)
  assert done.returncode == 1, done.stdout + done.stderr
  assert f'warning: {warning}' in done.stdout.splitlines()


def test_equal_examples_are_not_a_problem():
  done = _inspect('--batches=1', '--split=Dev', kinds=3)
  assert done.returncode == 0, done.stdout + done.stderr
  assert '3 different examples, 3 of them by more than' in done.stdout


def test_one_dataset_and_few_batches():
  done = _inspect('--split=Dev', '--batches=1', '--rows=1', '--hosts=1')
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'Train' not in done.stdout and 'hosts read' not in done.stdout
  assert 'batch 1' not in done.stdout and '[1]' not in done.stdout


def test_lingvo_data_is_shown_as_text():
  done = _inspect(
    *('--split=Dev', '--batches=1', '--shard_batches=2'),
    exp=trainer_runs.LINGVO,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert "[0] ids: '<s>execution of python coroutines can be" in done.stdout
  assert '0 of them by more than one host' in done.stdout


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (('--split=Dve',), "unknown dataset 'Dve'; did you mean: Dev"),
    (('more',), 'expected flags only'),
    (('--hosts=0',), 'hosts'),
    (
      ('--html=no_such_folder/page.html',),
      'no_such_folder/page.html: expected',
    ),
  ],
)
def test_invalid_flags(flags, message):
  done = _inspect(*flags)
  assert done.returncode == 2
  assert message in done.stderr and 'Traceback' not in done.stderr


def test_help_imports_nothing_slow():
  done, imported = trainer_runs.traced(
    '-m', 'pax_compat.tools.inspect_input', '--help'
  )
  assert done.returncode == 0 and '--shard_batches' in done.stdout
  assert not imported & trainer_runs.SLOW_TO_IMPORT
