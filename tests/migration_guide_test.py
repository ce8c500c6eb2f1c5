"""The commands of docs/migration_guide.md run, one after the other."""

import pathlib
import re
import subprocess
import sys

import pytest

_PAGE = pathlib.Path(__file__).resolve().parents[1] / 'docs/migration_guide.md'


@pytest.mark.slow
def test_the_commands_run(tmp_path):
  blocks = re.findall(r'```bash\n(.*?)```', _PAGE.read_text('utf-8'), re.DOTALL)
  assert len(blocks) == 5
  ended = {}
  for block in blocks:
    command = block.replace('python -m', f'{sys.executable} -m', 1)
    done = subprocess.run(
      ['bash', '-euc', command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, f'{block}{done.stdout}{done.stderr}'
    ended[block.split()[2]] = done.stdout + done.stderr
  assert 'native' in ended['adaptors.migrate']
  assert 'agree' in ended['adaptors.lingvo_parity']
  assert (tmp_path / 'runs/lingvo/train/checkpoint').is_file()
  back = (tmp_path / 'runs/back/train/checkpoint').read_text()
  assert '40' in back
