"""The commands of docs/migration_guide.md run, in the order of the page."""

import pathlib
import re
import subprocess
import sys

import pytest

_PAGE = pathlib.Path(__file__).resolve().parents[1] / 'docs/migration_guide.md'

pytestmark = pytest.mark.slow


def _commands() -> list[str]:
  blocks = re.findall(r'```bash\n(.*?)```', _PAGE.read_text('utf-8'), re.DOTALL)
  assert len(blocks) == 5
  return blocks


def _run(command: str, folder: pathlib.Path) -> str:
  """Runs one command of the page and returns what it prints."""
  command = command.replace('python -m', f'{sys.executable} -m', 1)
  done = subprocess.run(
    ['bash', '-euc', command], cwd=folder, capture_output=True, text=True
  )
  printed = done.stdout + done.stderr
  assert done.returncode == 0, f'{command}{printed}'
  return printed


def test_what_is_native(tmp_path):
  examine, *_ = _commands()
  assert 'native' in _run(examine, tmp_path)


def test_a_run_of_lingvo_goes_on_and_comes_back(tmp_path):
  _, train, go_on, convert, _ = _commands()
  _run(train, tmp_path)
  assert (tmp_path / 'runs/lingvo/train/checkpoint').is_file()
  _run(go_on, tmp_path)
  _run(convert, tmp_path)
  assert '40' in (tmp_path / 'runs/back/train/checkpoint').read_text()


def test_both_agree(tmp_path):
  *_, compare = _commands()
  assert 'agree' in _run(compare, tmp_path)
