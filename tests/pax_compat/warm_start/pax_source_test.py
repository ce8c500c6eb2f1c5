"""Tests of starting from checkpoints that Pax wrote.

`tests/pax/record_checkpoints.py` made them, with Pax.
"""

import json
import pathlib
import shutil
import tarfile

import jax
import numpy as np
import pytest

from lm_tasks.params import lm_cloud
from pax_compat import checkpoints, errors, optimizers, schedules, tasks_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from pax_compat.warm_start import pax_source, pax_trees, sources, start
from tests.pax import tiny

_RECORDED = pathlib.Path(__file__).parents[3] / 'testdata/pax'
_FORMS = {
  'ocdbt': 'checkpoint_00000100',
  'gda': 'checkpoint_00000100',
  'flax': 'checkpoint_100',
}
_LAYER = 'params/lm/transformer/repeat/sub/x_layers_0'


@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
  """The folder of the checkpoints."""
  folder = tmp_path_factory.mktemp('pax')
  with tarfile.open(_RECORDED / 'checkpoints.tar.gz') as archive:
    archive.extractall(folder, filter='data')
  return folder


@pytest.fixture(scope='module')
def arrays(recorded):
  """The leaves of the state by path, as Pax had them."""
  with np.load(recorded / 'vars.npz') as read:
    return dict(read)


@pytest.fixture(scope='module')
def made():
  """Our program for the task that the checkpoints are of."""
  task = tiny.shrunk(lm_cloud.LmCloudSpmd2B).task()
  task.model.lm_tpl.vocab_size = 16
  task.train.learner.optimizer = optimizers.Adam.config(
    beta1=0.9,
    beta2=0.99,
    learning_rate=1e-3,
    lr_schedule=schedules.Constant.config(value=1.0),
    ema_decay=0.9,
  )
  mesh = partitioning.create_mesh(
    [1, 1, 1], task.model.mesh_axis_names, devices=jax.devices()[:1]
  )
  batch = NestedMap(tiny.batch())
  return program.create(task.Instantiate(), mesh, batch), batch


def _started(made, **rules):
  task_program, batch = made
  [(path, fields)] = rules.items()
  one = start.Start({path: tasks_lib.CheckpointLoadingRules(**fields)})
  return one, checkpoints.state_paths(one.state(task_program, batch))


@pytest.mark.parametrize('form', _FORMS)
def test_all_of_a_state(made, recorded, arrays, form):
  fields = dict(load_step=True, load_opt_states=True, safe_load=True)
  one, state = _started(made, **{str(recorded / form): fields})
  assert (one.step, int(state['step'])) == (100, 100)
  # What Pax has counted; it never stepped.
  count = int(arrays['opt_states.0.no_prefix.2.count'])
  compared = 0
  for path, x in state.items():
    if path.startswith('mdl_vars.'):
      wanted = arrays[path]
    elif path.startswith('opt_state.average.ema.'):
      weight = path.removeprefix('opt_state.average.ema.')
      [wanted] = _ending(arrays, f'.ema.params.{weight}')
    elif '.mu.' in path or '.nu.' in path:
      slot, decay = ('m', 0.9) if '.mu.' in path else ('v', 0.99)
      weight = path.partition('.mu.')[2] or path.partition('.nu.')[2]
      [wanted] = _ending(arrays, f'.{slot}.params.{weight}')
      wanted = wanted * (1 - decay**count)
    else:
      continue
    np.testing.assert_allclose(x, wanted, rtol=1e-6, err_msg=path)
    compared += 1
  variables = sum(path.startswith('mdl_vars.') for path in arrays)
  assert compared == 4 * variables
  assert f'{variables} of {variables} variables are loaded' in one.report
  assert 'unused' not in one.report


def _ending(arrays, name):
  return [x for path, x in arrays.items() if path.endswith(name)]


def test_averages_of_a_step_given_by_its_folder(made, recorded, arrays):
  path = recorded / 'gda' / _FORMS['gda']
  rules = dict(load_rules=[('(params/lm/final_ln/.*)', 'ema/{}')])
  one, state = _started(made, **{str(path): rules})
  assert (one.step, int(state['step'])) == (0, 0)
  [scale] = _ending(arrays, '.ema.params.lm.final_ln.scale')
  np.testing.assert_array_equal(
    state['mdl_vars.params.lm.final_ln.scale'], scale
  )
  # New averages begin at the loaded weights.
  np.testing.assert_array_equal(
    state['opt_state.average.ema.lm.final_ln.scale'], scale
  )
  lines = one.report.splitlines()
  assert f'initial {_LAYER}/layer_norm/scale' in lines
  assert f'unused  mdl_vars/{_LAYER}/layer_norm/scale of {path}' in lines
  assert "initial the optimizer's state" in lines


def test_a_chunk_that_is_missing_is_not_zero(recorded, tmp_path):
  path = shutil.copytree(recorded / 'gda' / _FORMS['gda'], tmp_path / '1')
  source = pax_source.PaxSource(path, 100)
  name = source.variables['params/lm/softmax/logits_ffn/linear/w']
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.ShapeDtypeStruct(source.arrays[name], 'float32', sharding=device)
  reads = (
    lambda: source.read({'w': sources.Request(name, like)})['w'],
    lambda: source.region(name, (slice(0, 2), slice(None))),
  )
  for read in reads:
    assert np.any(np.asarray(read()))
  [chunk] = (path / 'state' / name.replace('/', '.')).glob('0*')
  chunk.unlink()
  for read in reads:
    with pytest.raises(errors.UserError, match=f'{name} cannot be read.*0.0'):
      read()


def test_damaged_checkpoints_are_errors(recorded, tmp_path):
  source = recorded / 'flax' / 'checkpoint_100' / 'state' / 'checkpoint'
  data = source.read_bytes()
  target = tmp_path / 'checkpoint_7' / 'state' / 'checkpoint'
  target.parent.mkdir(parents=True)
  for damaged in (data[:1000], b'', data.replace(b'CustomNode', b'OtherNode_')):
    target.write_bytes(damaged)
    path, step = pax_source.folder_of(tmp_path, None)
    assert step == 7
    with pytest.raises(errors.UserError, match='checkpoint_7'):
      pax_source.PaxSource(path, step)
  metadata = recorded / 'gda' / _FORMS['gda'] / 'metadata' / 'metadata'
  assert json.loads(metadata.read_text())['version'] == 1.1
  with pytest.raises(errors.UserError, match='step 9; the nearest are: 7'):
    pax_source.folder_of(tmp_path, 9)


@pytest.mark.parametrize(
  'text',
  [
    '',
    'PyTreeDef(',
    'PyTreeDef(__import__("os"))',
    "PyTreeDef({'a' + 'b': *})",
  ],
)
def test_texts_that_are_no_tree(text):
  with pytest.raises(ValueError, match='character'):
    pax_trees.leaf_names(text)
