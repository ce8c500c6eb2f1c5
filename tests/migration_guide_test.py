"""The commands of docs/migration_guide.md run.

Lingvo's trainer waits half a minute for itself; meanwhile those commands run
that need no run of it.
"""

import contextlib
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
    self._started, self._printed = {}, {}

  def start(self, index: int):
    """Starts a command, whose output `printed` waits for."""
    command = self._commands[index]
    # To a file: a full pipe would stop it.
    with open(self._log(index), 'wb') as log:
      self._started[index] = subprocess.Popen(
        ['bash', '-euc', command.replace('python -m', f'{sys.executable} -m')],
        cwd=self.folder,
        stdout=log,
        stderr=subprocess.STDOUT,
      )

  def _log(self, index: int) -> pathlib.Path:
    return self.folder / f'{index}.log'

  def printed(self, index: int, *before: int) -> str:
    """Returns what a command prints, after those that it needs."""
    for needed in (*before, index):
      if needed not in self._printed:
        self._printed[needed] = self._ended(needed)
    return self._printed[index]

  def _ended(self, index: int) -> str:
    if index not in self._started:
      self.start(index)
    status = self._started[index].wait()
    printed = self._log(index).read_text()
    assert status == 0, f'{self._commands[index]}{printed}'
    return printed

  def close(self):
    """Ends what still runs."""
    for process in self._started.values():
      process.kill()
      process.wait()


@pytest.fixture(scope='module')
def guide(tmp_path_factory):
  with contextlib.closing(_Guide(tmp_path_factory.mktemp('guide'))) as guide:
    guide.start(1)
    yield guide


def test_what_is_native(guide):
  assert 'native' in guide.printed(0)


def test_both_agree(guide):
  assert 'agree' in guide.printed(4)


def test_lingvo_trains(guide):
  guide.printed(1)
  assert (guide.folder / 'runs/lingvo/train/checkpoint').is_file()


def test_its_run_goes_on(guide):
  assert 'done: 20 steps' in guide.printed(2, 1)


def test_it_comes_back(guide):
  guide.printed(3, 1, 2)
  assert '20' in (guide.folder / 'runs/back/train/checkpoint').read_text()
