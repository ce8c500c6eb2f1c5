"""Tests of `python -m pax_compat.tools.report`, in a browser too."""

import html.parser
import importlib.util
import re
import shutil
import subprocess
import time

import pytest

from tests import source_tree
from tests.pax_compat import trainer_runs
from tests.pax_compat.tools.run_report import folders

_COMMAND = ('-m', 'pax_compat.tools.report')
_CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
_FLAGS = (
  *('--headless', '--no-sandbox', '--disable-gpu', '--no-first-run'),
  *('--disable-background-networking', '--disable-component-update'),
  *('--disable-sync', '--enable-logging=stderr'),
  # Nothing outside the page can be reached.
  '--host-resolver-rules=MAP * ~NOTFOUND',
)
_needs_plotly = pytest.mark.skipif(
  importlib.util.find_spec('plotly') is None, reason='needs plotly'
)


def _report(*arguments, **env):
  return trainer_runs.forked(*_COMMAND, *map(str, arguments), **env)


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """Returns a folder with two runs, a page and a picture of them."""
  folder = tmp_path_factory.mktemp('runs')
  folders.make(folder / 'a')
  folders.make(folder / '<script>', steps=6, offset=1.0)
  done = _report(
    *(folder / 'a', folder / '<script>'),
    *(f'--to={folder}/report.html', f'--svg={folder}/loss.svg'),
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == (
    f'wrote {folder}/loss.svg\nwrote {folder}/report.html\n'
  )
  return folder


def _text(page: str) -> str:
  """Returns what a page shows, without scripts and styles.

  Also checks that elements are closed, and that nothing outside is loaded.
  """
  open_tags, texts = [], []

  class Parser(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
      for name, value in attrs:
        assert name not in ('src', 'srcset')
        assert name != 'href' or value.startswith('#')
      if tag != 'meta':
        open_tags.append(tag)

    def handle_endtag(self, tag):
      assert open_tags.pop() == tag

    def handle_data(self, data):
      if open_tags and open_tags[-1] not in ('script', 'style'):
        texts.append(data)

  Parser().feed(page)
  assert not open_tags
  return '\n'.join(texts)


@_needs_plotly
def test_a_page_of_two_runs(written):
  page = (written / 'report.html').read_text()
  text = _text(page)
  for shown in (
    'Report of a, <script>',
    '1.6667 (lowest 1.6667 at step 6)',
    '6 of 6',
    'training 75%, lost 25%',
    'fields that differ: 1',
    'task.train.num_train_steps',
    'a: 169 parameters, 628 bytes; 212 bytes per device of the mesh data 2 x',
    'data and mdl, -',
    'a: few at step 10',
    'x' * 597 + '...',
    'a, log.txt: 3 warnings and errors',
    'the disk is <slow> (2 times)',
    'ended by ValueError: no data\nat all',
    'Metrics',
    'Throughput and input',
  ):
    assert shown in text, shown
  assert page.count('* plotly.js v') == 1


@_needs_plotly
@pytest.mark.slow
@pytest.mark.skipif(
  _CHROMIUM is None, reason='needs the browser Chromium: apt install chromium'
)
def test_a_browser_draws_the_page(written, tmp_path):
  done = subprocess.run(
    [
      *(_CHROMIUM, *_FLAGS, f'--user-data-dir={tmp_path}'),
      *('--virtual-time-budget=10000', '--dump-dom'),
      (written / 'report.html').as_uri(),
    ],
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert 'CONSOLE' not in done.stderr, done.stderr  # Errors of scripts.
  assert '<title>Report of a, &lt;script&gt;</title>' in done.stdout
  drawn = re.findall(r'data-title="([^"]*)" data-drawn="yes"', done.stdout)
  assert drawn == [
    *('loss', 'accuracy', 'log_pplx', 'steps per second'),
    'MFU, the fraction of peak FLOPs used',
  ]
  # Plotly's own elements: of the loss five curves, of the others one a run.
  curves = re.findall(r'<g class="trace scatter trace\w+"', done.stdout)
  assert len(curves) == 6 + 2 + 4 + 2 + 2


def test_help_is_quick_and_imports_nothing_slow():
  start = time.monotonic()
  done, imported = trainer_runs.traced(*_COMMAND, '--help')
  assert done.returncode == 0
  assert '--svg' in done.stdout
  assert not imported & {*trainer_runs.SLOW_TO_IMPORT, 'plotly'}
  assert time.monotonic() - start < 60  # Two seconds on a free machine.


@pytest.mark.parametrize(
  ('arguments', 'expected'),
  [
    ([], 'expected folders of runs and a file'),
    (['a'], 'expected folders of runs and a file'),
    (['aa', '--svg=x.svg'], 'folder not found; did you mean: a'),
    (['a', '--svg=no/x.svg'], '--svg=no/x.svg: expected a file in a writable'),
    (['a', '--svg=x.svg', '--metric=los'], "'los' to draw; did you mean: loss"),
    (['a', '--to=x.html', '--metric=loss'], '--metric is of the picture'),
  ],
)
def test_mistakes(tmp_path, monkeypatch, arguments, expected):
  monkeypatch.chdir(tmp_path)
  folders.make(tmp_path / 'a')
  done = _report(*arguments)
  trainer_runs.assert_mistake(done, expected)
  assert [path.name for path in tmp_path.iterdir()] == ['a']


@_needs_plotly
def test_commands_of_the_page_of_docs(tmp_path, monkeypatch):
  text = (source_tree.ROOT / 'docs' / 'report.md').read_text()
  commands = re.findall(
    r'^python (-m pax_compat\.tools\.report .*)', text, re.M
  )
  for name in ('runs/a', 'runs/b', 'tmp/first'):
    folders.make(tmp_path / name)
  (tmp_path / 'docs').mkdir()
  monkeypatch.chdir(tmp_path)
  for command in commands:
    words = command.replace(' /', f' {tmp_path}/').split()
    done = trainer_runs.forked(*words)
    assert done.returncode == 0, done.stderr
  assert len(commands) == 4
  # The picture is as this version draws it: it has all of its elements.
  picture = (source_tree.ROOT / 'docs' / 'first_run.svg').read_text()
  for shown in (
    'loss of lm.python_docs.TransformerLmTiny',
    'train',
    'eval_Dev',
  ):
    assert f'>{shown}</text>' in picture


def test_without_plotly_the_extra_is_named(tmp_path):
  folders.make(tmp_path / 'a')
  script = (
    'import importlib.util, sys\n'
    'from pax_compat.tools import report\n'
    'find = importlib.util.find_spec\n'
    'importlib.util.find_spec = lambda name, *a: (\n'
    '  None if name == "plotly" else find(name, *a))\n'
    'report.run()\n'
  )
  done = trainer_runs.python(
    '-c', script, str(tmp_path / 'a'), f'--to={tmp_path}/x.html'
  )
  trainer_runs.assert_mistake(done, "pip install 'pax-compat[report]'")
