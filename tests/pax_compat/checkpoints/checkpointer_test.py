"""Tests of saving and restoring, on real files and in real processes."""

import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from tests.on_processes import sharded_state
from tests.pax_compat.checkpoints.states import (
  assert_same,
  make_state,
  open_folder,
  save_steps,
  target_of,
)
from tests.pax_compat.launching import (
  flags_of_devices,
  run_function,
  run_on_processes,
  run_script,
)


def test_state_and_extra_come_back(tmp_path):
  state = make_state(3)
  checkpointer = open_folder(tmp_path)
  assert checkpointer.latest_step() is None
  assert checkpointer.save(3, state, {'name': 'lm.X', 'files': [1, None]})
  checkpointer.wait()
  assert checkpointer.latest_step() == 3
  assert checkpointer.extra(3) == {'name': 'lm.X', 'files': [1, None]}
  restored, extra = checkpointer.restore(3, target_of(state))
  checkpointer.close()
  assert_same(restored, state)
  assert extra == {'name': 'lm.X', 'files': [1, None]}
  # The key goes on where it was.
  np.testing.assert_array_equal(
    jax.random.normal(restored.key[1]), jax.random.normal(state.key[1])
  )


def test_the_caller_may_reuse_its_arrays(tmp_path):
  array = np.arange(1000, dtype=np.int32)
  donated = jnp.arange(8.0)
  checkpointer = open_folder(tmp_path)
  checkpointer.save(1, {'a': array, 'd': donated}, {})
  array[:] = -1
  donated.delete()
  checkpointer.wait()
  target = target_of({'a': array, 'd': jnp.zeros(8)})
  restored, _ = checkpointer.restore(1, target)
  checkpointer.close()
  np.testing.assert_array_equal(restored['a'], np.arange(1000))
  np.testing.assert_array_equal(restored['d'], np.arange(8.0))


def test_saving_a_step_twice_is_harmless(tmp_path):
  checkpointer = open_folder(tmp_path)
  assert checkpointer.save(1, make_state(1), {})
  assert not checkpointer.save(1, make_state(2), {})
  checkpointer.close()
  again = open_folder(tmp_path)
  restored, _ = again.restore(again.latest_step(), target_of(make_state()))
  assert not again.save(1, restored, {})
  again.close()
  assert_same(restored, make_state(1))


def test_going_back_saves_the_same_steps_again(tmp_path):
  checkpointer = open_folder(tmp_path)
  for step in (1, 2):
    checkpointer.save(step, make_state(step), {})
  checkpointer.restore(1, target_of(make_state()))
  assert checkpointer.save(2, make_state(7), {})
  restored, _ = checkpointer.restore(2, target_of(make_state()))
  checkpointer.close()
  assert_same(restored, make_state(7))


def test_other_dimensions_are_named(tmp_path):
  save_steps(tmp_path, 1)
  checkpointer = open_folder(tmp_path)
  with pytest.raises(errors.UserError) as e:
    checkpointer.restore(1, target_of(make_state(dims=16)))
  text = str(e.value)
  line = 'params.lm.w: stored float32[4,8], wanted float32[4,16]'
  assert line in text
  assert text.count('stored') == 5
  assert 'and 1 more' in text
  checkpointer.close()


def test_other_trees_and_types_are_named(tmp_path):
  checkpointer = open_folder(tmp_path)
  checkpointer.save(1, {'a': jnp.ones(2), 'old': jnp.ones(2)}, {})
  target = {'a': jnp.ones(2, jnp.int32), 'new': jnp.ones((2, 3))}
  with pytest.raises(errors.UserError) as e:
    checkpointer.restore(1, target)
  checkpointer.close()
  text = str(e.value)
  assert 'a: stored float32[2], wanted int32[2]' in text
  assert 'old: stored float32[2], wanted nothing' in text
  assert 'new: stored nothing, wanted float32[2,3]' in text


def test_a_target_needs_shardings(tmp_path):
  checkpointer = open_folder(tmp_path)
  checkpointer.save(1, {'a': jnp.ones(2)}, {})
  with pytest.raises(ValueError, match='a has no sharding'):
    checkpointer.restore(1, {'a': jax.ShapeDtypeStruct((2,), jnp.float32)})
  checkpointer.close()


def test_extra_can_be_amended(tmp_path):
  checkpointer = open_folder(tmp_path)
  for step in (1, 2):
    checkpointer.save(step, make_state(step), {'due': True, 'at': step})
  checkpointer.amend(2, {'due': False})
  checkpointer.close()
  checkpointer = open_folder(tmp_path)
  assert checkpointer.latest_step() == 2
  assert checkpointer.extra(1) == {'due': True, 'at': 1}
  assert checkpointer.extra(2) == {'due': False, 'at': 2}
  with pytest.raises(errors.UserError, match='no checkpoint of step 3'):
    checkpointer.amend(3, {'due': False})
  checkpointer.close()


def test_extra_must_be_json(tmp_path):
  checkpointer = open_folder(tmp_path)
  with pytest.raises(TypeError, match='JSON'):
    checkpointer.save(1, make_state(), {'x': object()})
  checkpointer.close()


def test_a_folder_that_cannot_be_used(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='cannot be used'):
    open_folder(tmp_path / 'file')
  with pytest.raises(errors.UserError, match='cannot be used: Orbax'):
    open_folder('s3://bucket/run')


def test_restart_in_a_new_process(tmp_path):
  done = run_script(
    """
    import sys
    from tests.pax_compat.checkpoints import states as t
    checkpointer = t.open_folder(sys.argv[1])
    step = checkpointer.latest_step()
    restored, extra = checkpointer.restore(step, t.target_of(t.make_state()))
    t.assert_same(restored, t.make_state(2))
    assert extra == {'position': 20}, extra
    checkpointer.close()
    assert 'tensorflow' not in sys.modules
    """,
    _save_in_new_process(tmp_path),
  )
  assert done.returncode == 0, done.stderr


def save_two(folder):
  """Saves two steps, without deprecated functions."""
  warnings.filterwarnings(
    'error', category=DeprecationWarning, module='pax_compat'
  )
  save_steps(folder, 1, 2)


def _save_in_new_process(tmp_path):
  done = run_function(save_two, tmp_path)
  assert done.returncode == 0, done.stderr
  return tmp_path


@pytest.mark.parametrize(
  'processes', [pytest.param(1, marks=pytest.mark.slow), 2]
)
def test_sharded(tmp_path, processes):
  if processes == 1:  # Without a coordinator.
    done = run_function(
      sharded_state.save_and_restore, tmp_path, XLA_FLAGS=flags_of_devices(4)
    )
    assert done.returncode == 0, done.stderr
    outputs = [done.stdout]
  else:
    outputs = run_on_processes(
      sharded_state.save_and_restore, 2, devices=2, args=[tmp_path]
    )
  failures = ['FAILED TypeError', 'FAILED RuntimeError']
  for output, failure in zip(outputs, failures[:processes], strict=True):
    assert 'MISSING UserError' in output
    assert failure in output
  assert sorted(os.listdir(tmp_path)) == ['4', 'manifests']
