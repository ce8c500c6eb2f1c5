"""Tests of `paxml.checkpoints`; tests/pax/forecasts_test.py reads Pax's."""

import json
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from adaptors.pax_names.own import checkpoint_paths, checkpoints
from pax_compat import errors
from pax_compat.tasks.train_states import TrainState
from tests import source_tree

_PAX = source_tree.ROOT / 'testdata/pax/checkpoints.tar.gz'


def _state(step: int, first: float = 0.0) -> TrainState:
  params = {
    'a': jnp.arange(3.0) + first,
    'b': {'c': jnp.ones([2, 2], jnp.bfloat16)},
  }
  return TrainState(jnp.asarray(step, jnp.uint32), {'params': params}, [])


def _shapes(state: TrainState) -> TrainState:
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)


def _a(state: TrainState) -> list[float]:
  return np.asarray(state.mdl_vars['params']['a']).tolist()


def test_what_is_saved_is_restored(tmp_path):
  saved = checkpoints.save_checkpoint(_state(3), tmp_path / 'new')
  saved.wait_until_finished()
  found = checkpoints.restore_checkpoint(_shapes(_state(0)), tmp_path / 'new')
  jax.tree.map(np.testing.assert_array_equal, found, _state(3))
  assert found.mdl_vars['params']['b']['c'].dtype == jnp.bfloat16
  assert isinstance(found.mdl_vars['params'], dict)
  files = {p.name for p in (tmp_path / 'new').iterdir()}
  assert files == {'checkpoint_3'}
  metadata = json.loads(
    (tmp_path / 'new/checkpoint_3/metadata/metadata').read_text()
  )
  assert metadata['version'] == 1.1
  a = metadata['train_state_metadata']['mdl_vars']['params']['a']
  assert a['unpadded_shape'] == [3]


def test_overwriting(tmp_path):
  def save(step, first, overwrite=False):
    saved = checkpoints.save_checkpoint(
      _state(step, first), tmp_path, overwrite
    )
    return saved.all_steps()

  def first(step=None):
    found = checkpoints.restore_checkpoint(_state(0), tmp_path, step=step)
    return _a(found)[0]

  assert save(3, 0.0) == [3]
  assert save(3, 5.0) == save(2, 5.0) == [3]
  assert first() == 0.0
  assert save(3, 7.0, overwrite=True) == [3]
  assert first() == 7.0
  assert save(2, 9.0, overwrite=True) == [2, 3]
  assert (first(), first(2)) == (7.0, 9.0)
  assert checkpoint_paths.latest_checkpoint(tmp_path).name == 'checkpoint_3'
  assert checkpoint_paths.retrieve_latest_checkpoint_step(tmp_path) == 3


@pytest.mark.parametrize(
  ('name', 'wanted'),
  [
    ('checkpoint_7', False),
    ('checkpoint7', False),
    ('checkpoint_7.orbax-checkpoint-tmp-123', True),
    ('tmp_123.checkpoint_7', True),
  ],
)
def test_checkpoints_that_are_not_complete(tmp_path, name, wanted):
  path = tmp_path / name
  path.mkdir()
  assert checkpoints.is_tmp_checkpoint_asset(path) == wanted


def test_a_checkpoint_may_be_named_by_its_number(tmp_path):
  path = checkpoint_paths.make_checkpoint_step_dir(
    tmp_path, 7, use_digit_step_subdirectory=True
  )
  assert path == tmp_path / '7'
  assert checkpoint_paths.get_step_from_checkpoint_asset(path) == 7


def test_a_state_of_one_device_of_pmap(tmp_path):
  stacked = jax.tree.map(lambda x: x[None], _state(4))
  checkpoints.save_checkpoint(stacked, tmp_path)
  assert checkpoint_paths.by_step(tmp_path).keys() == {4}


def test_names_without_the_collection_and_fewer_of_them(tmp_path):
  checkpoints.save_checkpoint(_state(3), tmp_path)
  wanted = _state(0).replace(mdl_vars={'a': jnp.zeros([3], jnp.float16)})
  found = checkpoints.restore_checkpoint(wanted, tmp_path)
  assert found.mdl_vars['a'].tolist() == [0, 1, 2]
  assert found.mdl_vars['a'].dtype == np.float16


def test_sharded_arrays(tmp_path):
  checkpoints.save_checkpoint(_state(3), tmp_path)
  mesh = jax.make_mesh((1,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))
  specs = jax.tree.map(lambda _: PartitionSpec(), _state(0))
  found = checkpoints.restore_checkpoint(
    _shapes(_state(0)), tmp_path, mesh, state_specs=specs
  )
  jax.tree.map(np.testing.assert_array_equal, found, _state(3))
  assert found.step.sharding.mesh.axis_names == ('x',)


@pytest.mark.parametrize('form', ['flax', 'gda', 'ocdbt'])
def test_checkpoints_that_pax_wrote(tmp_path, form):
  with tarfile.open(_PAX) as archive:
    archive.extractall(tmp_path, filter='data')
  arrays = {
    path.removeprefix('.mdl_vars.').removeprefix('mdl_vars.'): x
    for path, x in np.load(tmp_path / 'vars.npz').items()
    if 'mdl_vars.' in path and not path.startswith('opt_states')
  }
  assert arrays
  wanted: dict = {}
  for path, x in arrays.items():
    *parents, last = path.split('.')
    node = wanted
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = jax.ShapeDtypeStruct(x.shape, x.dtype)
  state = TrainState(jax.ShapeDtypeStruct([], np.uint32), wanted, [])
  found = checkpoints.restore_checkpoint(state, tmp_path / form)
  assert int(found.step) == 100
  for path, x in arrays.items():
    node = found.mdl_vars
    for part in path.split('.'):
      node = node[part]
    np.testing.assert_array_equal(node, x)


def test_states_that_do_not_fit(tmp_path):
  checkpoints.save_checkpoint(_state(3), tmp_path)
  params = _state(0).mdl_vars['params']
  for wrong, message in (
    ({**params, 'aa': params['a']}, 'mdl_vars/params/aa; did you mean: mdl_'),
    ({**params, 'a': jnp.zeros([7])}, r'a \[7\] from mdl_vars/params/a \[3\]'),
  ):
    state = _state(0).replace(mdl_vars={'params': wrong})
    with pytest.raises(errors.UserError, match=message):
      checkpoints.restore_checkpoint(state, tmp_path)
  with pytest.raises(errors.UserError, match='to_eval_state'):
    checkpoints.restore_checkpoint(
      _state(0).replace(opt_states=[jnp.zeros([])]), tmp_path
    )
  with pytest.raises(ValueError, match='expected a TrainState'):
    checkpoints.restore_checkpoint((_state(0), None), tmp_path)


def test_there_is_no_checkpoint(tmp_path):
  for folder in (tmp_path, tmp_path / 'missing'):
    with pytest.raises(ValueError, match='has no checkpoint'):
      checkpoints.restore_checkpoint(_state(0), folder)
  checkpoints.save_checkpoint(_state(3), tmp_path)
  with pytest.raises(ValueError, match='of step 4, but of 3'):
    checkpoints.restore_checkpoint(_state(0), tmp_path, step=4)
  assert checkpoint_paths.latest_checkpoint_if_exists(tmp_path / 'a') is None
  with pytest.raises(ValueError, match='has no checkpoint'):
    checkpoint_paths.latest_checkpoint(tmp_path / 'a')


def test_other_types_are_not_written(tmp_path):
  for fields in (
    {'checkpoint_type': checkpoints.CheckpointType.GDA},
    {'tensorstore_use_ocdbt': True},
    {'async_checkpointer': object()},
  ):
    with pytest.raises(errors.UserError, match='save_checkpoint'):
      checkpoints.save_checkpoint(_state(3), tmp_path, **fields)
  assert not list(tmp_path.iterdir())
