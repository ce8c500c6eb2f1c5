"""`python -m adaptors.migrate` as users start it."""

import json

import pytest

from tests import resources
from tests.adaptors import native_library
from tests.pax_compat import trainer_runs

pytestmark = native_library.NEEDS_LINGVO

MIGRATE = ('-m', 'adaptors.migrate')
_MODULE = 'tests.adaptors.migrate.user_experiments'


def _migrate(*flags):
  return trainer_runs.forked(*MIGRATE, *flags)


def test_help():
  began = resources.children_seconds()
  done, imported = trainer_runs.traced(*MIGRATE, '--help')
  assert resources.children_seconds() - began < 5
  assert done.returncode == 0
  for flag in ('--exp', '--all', '--html', '--json', '--trace'):
    assert flag in done.stdout.replace('--[no]', '--')
  assert not imported & trainer_runs.SLOW_TO_IMPORT


@pytest.mark.parametrize(
  'flags,words',
  [
    ([], ['got no experiments', '--all']),
    (['--all', '--exp=x.Y'], ['got --all and --exp;']),
    (['lm.python_docs'], ['lm.python_docs: expected flags only']),
    (
      ['--exp=lm.python_docs.TransformerLmTin'],
      ['is called', 'did you mean', trainer_runs.LINGVO],
    ),
    (
      ['--exp=lm.python_dogs.*'],
      ['matches', 'did you mean', trainer_runs.LINGVO],
    ),
    (['--all', '--translation=native'], ['--translation=native has no']),
    (
      ['--all', '--html=/nowhere/at/all.html'],
      ['folder /nowhere/at does not exist'],
    ),
    (
      ['--all', '--lingvo_source=/nowhere'],
      ['not a source checkout of Lingvo'],
    ),
  ],
)
def test_mistakes_in_the_flags(flags, words):
  done, imported = trainer_runs.traced(*MIGRATE, *flags)
  trainer_runs.assert_mistake(done, *words)
  assert not imported & trainer_runs.SLOW_TO_IMPORT


@pytest.mark.slow
def test_a_report_on_several(tmp_path):
  done = _migrate(
    f'--exp={_MODULE}.O*',
    f'--import_modules={_MODULE}',
    f'--html={tmp_path / "report.html"}',
    f'--json={tmp_path / "report.json"}',
    '--model_params_override=task.train.max_steps : 7',
    '--notrace',
  )
  assert done.returncode == 1, done.stdout + done.stderr
  assert 'Traceback' not in done.stderr
  lines = done.stdout.splitlines()
  assert lines[0] == f'1/3 {_MODULE}.OddValue: impossible'
  rows = [x.split()[:2] for x in lines[4:] if x.startswith(_MODULE)]
  assert rows[:3] == [
    [f'{_MODULE}.OddValue', 'impossible'],
    [f'{_MODULE}.OwnLayer', 'bridged'],
    [f'{_MODULE}.OwnTask', 'bridged'],
  ]
  page = (tmp_path / 'report.html').read_text('utf-8')
  assert '&lt;script&gt;document.title' in page
  assert page.count('<script') == 1
  data = json.loads((tmp_path / 'report.json').read_text('utf-8'))
  assert [one['status'] for one in data] == ['impossible', *['bridged'] * 2]
  issue = data[1]['tasks'][0]['issues'][0]
  assert issue['class_path'] == f'{_MODULE}.Louder'


def test_a_report_on_one():
  done = _migrate(f'--exp={trainer_runs.LINGVO}')
  assert done.returncode == 0, done.stdout + done.stderr
  assert done.stdout.startswith(f'{trainer_runs.LINGVO}: native')
  assert f'python -m pax_compat.main --exp={trainer_runs.LINGVO}' in done.stdout
