"""Tests of reading checkpoints, in part, without changing their folder."""

import pathlib

import jax
import numpy as np
import pytest

from pax_compat import checkpoints, errors
from tests.pax_compat.checkpoints.states import (
  make_state,
  save_steps,
  target_of,
)


def _files(folder: pathlib.Path) -> dict[str, bytes]:
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def test_single_arrays_are_read_and_nothing_changes(tmp_path):
  save_steps(tmp_path, 1, 2)
  before = _files(tmp_path)
  stored = checkpoints.StoredCheckpoint(tmp_path)
  assert stored.step == 2
  assert stored.arrays['params.lm.w'] == {'shape': [4, 8], 'dtype': 'float32'}
  state = make_state(2)
  paths = ('params.lm.w', 'params.empty', 'key', 'plain')
  wanted = checkpoints.state_paths(target_of(state))
  read = stored.read({path: wanted[path] for path in paths})
  assert list(read) == list(paths)
  np.testing.assert_array_equal(read['params.lm.w'], state.params.lm.w)
  assert read['params.empty'].shape == (0, 3)
  assert int(read['plain']) == 2
  np.testing.assert_array_equal(
    jax.random.key_data(read['key']), jax.random.key_data(state.key)
  )
  older = checkpoints.StoredCheckpoint(tmp_path, 1)
  assert int(older.read({'plain': wanted['plain']})['plain']) == 1
  assert _files(tmp_path) == before


def test_what_cannot_be_read(tmp_path):
  with pytest.raises(errors.UserError, match='has no checkpoint; expected'):
    checkpoints.StoredCheckpoint(tmp_path / 'none')
  assert not (tmp_path / 'none').exists()
  save_steps(tmp_path, 3)
  with pytest.raises(errors.UserError, match=r'step 4; the nearest are: 3$'):
    checkpoints.StoredCheckpoint(tmp_path, 4)
  wanted = checkpoints.state_paths(target_of(make_state(dims=16)))
  stored = checkpoints.StoredCheckpoint(tmp_path)
  with pytest.raises(
    errors.UserError,
    match=r'params\.lm\.w: stored float32\[4,8\], wanted float32\[4,16\]',
  ):
    stored.read({'params.lm.w': wanted['params.lm.w']})
  with pytest.raises(errors.UserError, match='other: stored nothing, wanted'):
    stored.read({'other': wanted['plain']})
