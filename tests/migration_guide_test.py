"""The commands of docs/migration_guide.md run, in the order of the page."""

import pathlib
import re
import subprocess
import sys

import pytest

_PAGE = pathlib.Path(__file__).resolve().parents[1] / 'docs/migration_guide.md'

pytestmark = pytest.mark.slow


class _Guide:
  """The page's commands, run in a folder; each of them once.

  They are separate tests, since all together take minutes.
  """

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._commands = re.findall(
      r'```bash\n(.*?)```', _PAGE.read_text('utf-8'), re.DOTALL
    )
    assert len(self._commands) == 5
    self._printed = {}

  def printed(self, index: int, *before: int) -> str:
    """Returns what a command prints, after those that it needs."""
    for needed in (*before, index):
      if needed not in self._printed:
        self._printed[needed] = self._run(self._commands[needed])
    return self._printed[index]

  def _run(self, command: str) -> str:
    command = command.replace('python -m', f'{sys.executable} -m', 1)
    done = subprocess.run(
      ['bash', '-euc', command],
      cwd=self.folder,
      capture_output=True,
      text=True,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, f'{command}{printed}'
    return printed


@pytest.fixture(scope='module')
def guide(tmp_path_factory):
  return _Guide(tmp_path_factory.mktemp('guide'))


def test_what_is_native(guide):
  assert 'native' in guide.printed(0)


def test_lingvo_trains(guide):
  guide.printed(1)
  assert (guide.folder / 'runs/lingvo/train/checkpoint').is_file()


def test_its_run_goes_on(guide):
  assert 'done: 20 steps' in guide.printed(2, 1)


def test_it_comes_back(guide):
  guide.printed(3, 1, 2)
  assert '20' in (guide.folder / 'runs/back/train/checkpoint').read_text()


def test_both_agree(guide):
  assert 'agree' in guide.printed(4)
