"""States made of real TensorFlow checkpoints, and the way back."""

import jax
import numpy as np
import pytest

from adaptors.lingvo_checkpoint import exporting, files, importing, task_facts
from pax_compat import base_layer, errors, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, tiny_task

pytestmark = native_library.NEEDS_LINGVO

# Kinds of optimizers, and what else of `train`.
_TRAIN = {
  'adagrad': lambda: dict(optimizer=tiny_task.optimizer('Adagrad')),
  'adam': lambda: dict(optimizer=tiny_task.optimizer('Adam')),
  'average': lambda: dict(
    optimizer=tiny_task.optimizer('Adam', beta1=0.8), ema_decay=0.9
  ),
  'sgd': lambda: dict(optimizer=tiny_task.optimizer('SGD')),
  'adafactor': lambda: _adafactor(min_dim_size_to_factor=2),
  'adafactor_with_momentum': lambda: _adafactor(
    min_dim_size_to_factor=2, beta1=0.9
  ),
  'adafactor_not_factored': lambda: _adafactor(beta1=0.9),
}
_SAVED, _STEPS = 2, 4


def _adafactor(**fields):
  optimizer = tiny_task.optimizer('XLAShardingAdafactor', beta2=0.99, **fields)
  return dict(optimizer=optimizer)


@pytest.fixture(scope='module', params=_TRAIN)
def lingvos(request, tmp_path_factory):
  """Returns Params, batches, the folder of checkpoints and Lingvo's weights."""
  folder = tmp_path_factory.mktemp(request.param)
  params = tiny_task.params(**_TRAIN[request.param]())
  data = tiny_task.batches()
  assert len(data) == _STEPS
  return params, data, folder, lingvo_runs.train(params, data, folder)


def _imported(params, batch, checkpoint, **allowed):
  """Returns the facts, the program and the state of a checkpoint."""
  translated = tiny_task.translate(params)
  made = program.create(
    translated.config, partitioning.create_mesh(None, None), batch
  )
  facts = task_facts.of(params, translated)
  state = importing.read_state(
    files.newest(checkpoint), facts, made, batch, **allowed
  )
  return facts, made, state


def _weights(facts, state):
  params = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  return facts.variables.to_lingvo(params)


def test_training_goes_on_as_in_lingvo(lingvos):
  params, data, folder, weights = lingvos
  facts, made, state = _imported(params, data[0], folder / f'ckpt-{_SAVED:08d}')
  for path, value in weights[_SAVED].items():
    np.testing.assert_array_equal(_weights(facts, state)[path], value)
  for batch in data[_SAVED:]:
    state, _ = made.train_step(state, batch)
  assert int(state.step) == _STEPS
  for path, value in weights[_STEPS].items():
    parity.assert_close(_weights(facts, state)[path], value, 1e-5, path)


def test_an_exported_import_is_the_original(lingvos, tmp_path):
  params, data, folder, _ = lingvos
  original = files.newest(folder)
  facts, _, state = _imported(params, data[0], folder)
  exported = files.TensorflowCheckpoint(exporting.write(state, facts, tmp_path))
  assert exported.shapes == original.shapes
  assert exported.dtypes == original.dtypes
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name


@pytest.mark.parametrize('version', ['V1', 'V2'])
def test_what_eager_mode_wrote(version, tmp_path):
  params = tiny_task.params(**_TRAIN['average']())
  batch = tiny_task.batches()[0]
  weights = lingvo_runs.train_eagerly(params, batch, tmp_path, version)
  facts, made, state = _imported(params, batch, tmp_path)
  for path, value in weights.items():
    np.testing.assert_array_equal(_weights(facts, state)[path], value)
  assert int(state.step) == 2
  # The moments are there too, not those of a first step.
  leaves = jax.tree.leaves(state.opt_state)
  assert all(np.any(np.asarray(leaf)) for leaf in leaves)


@pytest.fixture(scope='module')
def adams(tmp_path_factory):
  """Returns Params and the folder of a run's checkpoints."""
  folder = tmp_path_factory.mktemp('adams')
  params = tiny_task.params(**_TRAIN['adam']())
  lingvo_runs.train(params, tiny_task.batches()[:1], folder)
  return params, folder


def test_what_is_missing_or_left_over_is_told(adams):
  """Of a task that keeps averages, but not of its biases' gradients."""
  params, folder = adams
  params = params.Copy()
  params.train.ema_decay = 0.9
  params.first.has_bias = False
  batch = tiny_task.batches()[0]
  with pytest.raises(errors.UserError) as mistake:
    _imported(params, batch, folder)
  message = str(mistake.value)
  for name in (
    'missing: tiny/first/w/var/ExponentialMovingAverage',
    'left over: tiny/first/b/var',
    'left over: tiny/first/b/var/Adam_1',
    '--allow_missing',
  ):
    assert name in message
  _, _, state = _imported(
    params,
    batch,
    folder,
    allow_missing=['.*/ExponentialMovingAverage'],
    allow_unused=['tiny/first/b/.*'],
  )
  assert int(state.step) == 1


def test_another_shape_is_told(adams):
  params, folder = adams
  params = params.Copy()
  params.emb.vocab_size = 8
  with pytest.raises(errors.UserError, match=r'emb/var_0/var \[7, 4\] for'):
    _imported(params, tiny_task.batches()[0], folder)


def test_a_file_that_was_cut_off(adams, tmp_path):
  params, folder = adams
  for file in folder.iterdir():
    data = file.read_bytes()
    cut = len(data) // 2 if '.data-' in file.name else len(data)
    (tmp_path / file.name).write_bytes(data[:cut])
  with pytest.raises(errors.UserError, match='ckpt-00000001, tensor tiny/'):
    _imported(params, tiny_task.batches()[0], tmp_path)


def test_an_index_that_was_cut_off(adams, tmp_path):
  _, folder = adams
  for file in folder.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes()[:-20])
  with pytest.raises(errors.UserError, match='no TensorFlow checkpoint'):
    files.newest(tmp_path)


def test_a_checkpoint_that_is_not_there(adams):
  _, folder = adams
  with pytest.raises(errors.UserError, match='ckpt-00000001'):
    files.newest(folder / 'ckpt-0000001')


def test_an_export_goes_on_where_it_was(adams, tmp_path, monkeypatch):
  params, folder = adams
  facts, _, state = _imported(params, tiny_task.batches()[0], folder)
  whole = files.TensorflowCheckpoint(
    exporting.write(state, facts, tmp_path / 'whole')
  )
  saved = []
  save = exporting._save

  def failing(parts, name, tensors):
    saved.append(name)
    if len(saved) == 5:
      raise KeyboardInterrupt
    return save(parts, name, tensors)

  monkeypatch.setattr(exporting, '_save', failing)
  with pytest.raises(KeyboardInterrupt):
    exporting.write(state, facts, tmp_path / 'parts')
  done, saved[:] = saved[1:4], []
  saved.extend([None] * 10)  # No further failure.
  again = files.TensorflowCheckpoint(
    exporting.write(state, facts, tmp_path / 'parts')
  )
  assert not set(done) & set(saved)
  assert again.shapes == whole.shapes
  for name in whole.shapes:
    np.testing.assert_array_equal(again.read(name), whole.read(name))
  with pytest.raises(errors.UserError, match='is there already'):
    exporting.write(state, facts, tmp_path / 'parts')
