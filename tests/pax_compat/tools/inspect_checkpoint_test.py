"""Tests of the command that shows checkpoints."""

import jax.numpy as jnp
import pytest
from absl import flags
from absl.testing import flagsaver

from pax_compat import errors
from pax_compat.tools import inspect_checkpoint
from tests.pax_compat.checkpoints.states import (
  make_state,
  open_folder,
  save_steps,
)


def _run(capsys, folder, **values):
  """Returns the exit status and the lines that are printed."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(**values):
    status = inspect_checkpoint.main(['', str(folder)])
  return status, capsys.readouterr().out.splitlines()


def test_what_is_shown(tmp_path, capsys):
  folder = tmp_path / 'run' / 'checkpoints'
  save_steps(folder, 1, 2)
  status, lines = _run(capsys, tmp_path / 'run', verify=True, arrays=True)
  assert status == 0
  assert lines[0] == str(folder)
  assert [line.split()[:2] for line in lines[1:3]] == [
    ['step', '1'],
    ['step', '2'],
  ]
  assert all(line.endswith('files  intact') for line in lines[1:3])
  assert '  params.scale  bfloat16[8]  from 2 to 2' in lines
  assert '  params.empty  float32[0,3]' in lines
  (folder / '1' / 'about' / 'metadata').write_text('')
  (folder / 'manifests' / '2.json').unlink()
  status, lines = _run(capsys, folder, verify=True)
  assert status == 1
  assert 'DAMAGED: ' in lines[1] and 'found 0 bytes' in lines[1]
  assert lines[2] == '  step 2  has files, but its manifest is lost'
  status, lines = _run(capsys, folder, verify=True, checkpoint_step=2)
  assert status == 1 and len(lines) == 2 and 'its manifest is lost' in lines[1]
  _, lines = _run(capsys, folder, checkpoint_step=1)
  assert len(lines) == 2 and lines[1].startswith('  step 1 ')
  with pytest.raises(errors.UserError, match='no checkpoint of step 3; expect'):
    _run(capsys, folder, checkpoint_step=3)
  with pytest.raises(errors.UserError, match='--diff_step is for --diff'):
    _run(capsys, folder, diff_step=1)
  with pytest.raises(errors.UserError, match='has no checkpoints'):
    _run(capsys, tmp_path)


def test_what_differs(tmp_path, capsys):
  save_steps(tmp_path / 'one', 3)
  save_steps(tmp_path / 'same', 3)
  checkpointer = open_folder(tmp_path / 'other')
  state = make_state(3)
  lm = state.params.lm
  params = {**state.params, 'lm': {'w': lm.w.at[0, 0].add(jnp.nan)}, 'new': 1.0}
  checkpointer.save(4, state.replace(params=params), {})
  checkpointer.close()
  compared = _run(capsys, tmp_path / 'one', diff=str(tmp_path / 'same'))
  assert compared[0] == 0 and compared[1][-1] == 'no differences'
  status, lines = _run(capsys, tmp_path / 'one', diff=str(tmp_path / 'other'))
  assert status == 1
  assert '  params.new: nothing and float32[]' in lines
  changed = '  params.lm.w: 1 of 32 elements differ, by at most nan'
  assert changed in lines and lines[-1] == '2 differences'
  _, lines = _run(capsys, tmp_path / 'other', arrays=True)
  [line] = [line for line in lines if 'NOT FINITE' in line]
  assert line.startswith('  params.lm.w') and line.endswith('1 NOT FINITE')
