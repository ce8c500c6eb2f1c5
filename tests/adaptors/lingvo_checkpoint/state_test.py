"""Import and export of states with real TensorFlow checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.checkpoints import exporting, files, importing, task_metadata
from pax_compat import base_layer, errors, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import micro_batches, parity, tiny_task

pytestmark = native_library.NEEDS_LINGVO

# Kinds of optimizers, and other settings of `train`.
_TRAIN = {
  'adagrad': lambda: dict(optimizer=tiny_task.optimizer('Adagrad')),
  'adam': lambda: dict(optimizer=tiny_task.optimizer('Adam')),
  'average': lambda: dict(
    optimizer=tiny_task.optimizer('Adam', beta1=0.8), ema_decay=0.9
  ),
  'scheduled_average': lambda: dict(
    optimizer=tiny_task.optimizer('SGD'),
    ema_schedule=tiny_task.schedule('EmaDecaySchedule', ema_decay=0.5),
  ),
  'sgd': lambda: dict(optimizer=tiny_task.optimizer('SGD')),
  'adafactor': lambda: _adafactor(min_dim_size_to_factor=2),
  'adafactor_with_momentum': lambda: _adafactor(
    min_dim_size_to_factor=2, beta1=0.9
  ),
  'adafactor_not_factored': lambda: _adafactor(beta1=0.9),
  'momentum': lambda: _of_dense('Momentum'),
  # Lingvo keeps averages of weights that are not trained, too.
  'nesterov_and_average': lambda: dict(
    ema_decay=0.9, **_of_dense('Momentum', use_nesterov=True)
  ),
  'rms_prop': lambda: _of_dense('RMSProp'),
  'ada_delta': lambda: _of_dense('AdaDelta'),
  # With gradients of two batches waiting.
  'accumulator': lambda: dict(
    optimizer=tiny_task.optimizer('Accumulator', accum_steps=3)
  ),
  'composite': lambda: dict(
    optimizer=tiny_task.optimizer(
      'CompositeOptimizer',
      optimizer_map={
        'tiny/first/b': (tiny_task.optimizer('Adam', beta1=0.5), 0.2),
        '.*nothing': (tiny_task.optimizer('Adam'), 0.2),
        '.*emb': (tiny_task.optimizer('Adagrad'), 0.3),
        'default_optimizer': (tiny_task.optimizer('Adam'), 0.05),
      },
    )
  ),
  'learners': lambda: dict(learner=_learners()),
  'norm_tracker': lambda: dict(
    optimizer=tiny_task.optimizer('SGD'), grad_norm_tracker=_tracker()
  ),
}
_SAVED, _STEPS = 5, 10


def _adafactor(**fields):
  optimizer = tiny_task.optimizer('XLAShardingAdafactor', beta2=0.99, **fields)
  return dict(optimizer=optimizer)


def _of_dense(name, **fields):
  """Of weights with dense gradients in Lingvo, which these need."""
  return dict(
    optimizer=tiny_task.optimizer(name, **fields),
    bprop_variable_exclusion='emb',
  )


def _learners():
  adam = tiny_task.optimizer
  return [
    tiny_task.learner(optimizer=adam('Adam'), bprop_variable_filter='first'),
    tiny_task.learner(
      name='others',
      loss_name='loss',
      optimizer=adam('Adam', beta2=0.99),
      bprop_variable_exclusion='first',
    ),
  ]


def _tracker():
  layers = lingvo_runtime.module('lingvo.core.layers')
  return layers.GradNormTracker.Params().Set(name='tracker', decay=0.5)


def _batches():
  return tiny_task.batches([1.0, 3.0, 0.5, 2.0, 1.5] * 2)


@pytest.fixture(scope='module', params=_TRAIN)
def lingvos(request, tmp_path_factory):
  """Returns Params, batches, the folder of checkpoints and Lingvo's weights."""
  folder = tmp_path_factory.mktemp(request.param)
  params = tiny_task.params(**_TRAIN[request.param]())
  data = _batches()
  return params, data, folder, lingvo_runs.train(params, data, folder)


def _imported(params, batch, checkpoint, **allowed):
  """Returns the metadata, the program and the state of a checkpoint."""
  translated = tiny_task.translate(params)
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), batch
  )
  metadata = task_metadata.of(params, translated)
  state = importing.read_state(
    files.newest(checkpoint), metadata, made, batch, **allowed
  )
  return metadata, made, state


def _weights(metadata, state):
  params = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  return metadata.variables.to_lingvo(params)


@pytest.fixture(scope='module')
def imported(lingvos):
  """Returns the metadata, the program and the state of a middle checkpoint."""
  params, data, folder, _ = lingvos
  return _imported(params, data[0], folder / f'ckpt-{_SAVED:08d}')


def _trained(imported, data):
  """Returns the state after some more steps."""
  _, made, state = imported
  state = jax.tree.map(jnp.copy, state)  # A step donates its state.
  for batch in data:
    state, _ = made.train_step(state, batch)
  return state


def test_training_continues_as_in_lingvo(lingvos, imported):
  _, data, _, weights = lingvos
  metadata, _, state = imported
  for path, value in _weights(metadata, state).items():
    np.testing.assert_array_equal(value, weights[_SAVED][path])
  state = _trained(imported, data[_SAVED:])
  assert int(state.step) == _STEPS
  for path, value in _weights(metadata, state).items():
    parity.assert_close(value, weights[_STEPS][path], 1e-5, path)


def test_an_exported_import_is_the_original(lingvos, imported, tmp_path):
  folder, (metadata, _, state) = lingvos[2], imported
  original = files.newest(folder / f'ckpt-{_SAVED:08d}')
  exported = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path)
  )
  assert exported.shapes == original.shapes
  assert exported.dtypes == original.dtypes
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name


@pytest.mark.parametrize(
  'lingvos', ['average', 'accumulator', 'rms_prop', 'learners'], indirect=True
)
def test_lingvo_continues_from_an_export(lingvos, imported, tmp_path):
  params, data, _, weights = lingvos
  state = _trained(imported, data[_SAVED : _STEPS - 2])
  restored = exporting.write(state, imported[0], tmp_path)
  found = lingvo_runs.train(
    params, data[_STEPS - 2 :], tmp_path, restored=restored
  )
  for path, value in weights[_STEPS].items():
    parity.assert_close(found[2][path], value, 1e-5, path)


@pytest.mark.parametrize('defers', [False, True])
def test_micro_batches(defers, tmp_path):
  """Whose global step grows with updates, and also with batches or not."""
  data = _batches()
  with micro_batches.sharded_adam() as optimizer:
    params = tiny_task.params(optimizer=optimizer.Set(num_micro_batches=3))
    params.defer_global_step_update = defers
    weights = lingvo_runs.train(params, data, tmp_path)
    original = files.newest(tmp_path / f'ckpt-{_SAVED:08d}')
    metadata, made, state = _imported(params, data[0], original.prefix)
  assert int(original.read('global_step')) == (1 if defers else _SAVED + 1)
  assert int(state.step) == _SAVED
  exported = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'exported')
  )
  assert exported.shapes == original.shapes
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name
  state = _trained((metadata, made, state), data[_SAVED:])
  for path, value in weights[_STEPS].items():
    parity.assert_close(_weights(metadata, state)[path], value, 1e-5, path)


def test_rows_that_are_padding(tmp_path):
  """Of a table so large that Lingvo has two, of which one has a row more."""
  params = tiny_task.params(optimizer=tiny_task.optimizer('Adagrad'))
  params.emb.Set(max_num_shards=2, vocab_size=65537)
  data = tiny_task.batches()[:2]
  lingvo_runs.train(params, data, tmp_path)
  original = files.newest(tmp_path)
  metadata, _, state = _imported(params, data[0], tmp_path)
  table = 'tiny/emb/var_1/var'
  assert original.shapes[table] == (32769, 4)
  assert np.all(original.read(table)[-1])
  back = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'back', original)
  )
  assert back.shapes == original.shapes
  for name in original.shapes:
    assert back.read(name).tobytes() == original.read(name).tobytes(), name
  # Else they have initial values, which Lingvo's optimizer does not change.
  new = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'new')
  )
  for name, value in ((table, 0), (f'{table}/Adagrad', 1)):
    rows, padding = new.read(name)[:-1], new.read(name)[-1]
    np.testing.assert_array_equal(rows, original.read(name)[:-1])
    np.testing.assert_array_equal(padding, np.full(4, value))


@pytest.mark.parametrize(
  ('version', 'kind'),
  [('V1', 'average'), ('V2', 'average'), ('V1', 'learners')],
)
def test_what_eager_mode_wrote(version, kind, tmp_path):
  params = tiny_task.params(**_TRAIN[kind]())
  batch = tiny_task.batches()[0]
  weights, step = lingvo_runs.train_eagerly(params, batch, tmp_path, version)
  metadata, made, state = _imported(params, batch, tmp_path)
  for path, value in weights.items():
    np.testing.assert_array_equal(_weights(metadata, state)[path], value)
  assert int(state.step) == step >= 2
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


def test_missing_and_left_over_tensors_are_listed(adams):
  """Of a task that keeps moving averages, and has no biases."""
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


def test_another_shape_is_refused(adams):
  params, folder = adams
  params = params.Copy()
  params.emb.vocab_size = 8
  with pytest.raises(errors.UserError, match=r'emb/var_0/var \[7, 4\] for'):
    _imported(params, tiny_task.batches()[0], folder)


def test_a_truncated_file(adams, tmp_path):
  params, folder = adams
  for file in folder.iterdir():
    data = file.read_bytes()
    size = len(data) // 2 if '.data-' in file.name else len(data)
    (tmp_path / file.name).write_bytes(data[:size])
  with pytest.raises(errors.UserError, match='ckpt-00000001, tensor tiny/'):
    _imported(params, tiny_task.batches()[0], tmp_path)


def test_a_truncated_index(adams, tmp_path):
  _, folder = adams
  for file in folder.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes()[:-20])
  with pytest.raises(errors.UserError, match='no TensorFlow checkpoint'):
    files.newest(tmp_path)


def test_a_checkpoint_that_is_not_there(adams):
  _, folder = adams
  with pytest.raises(errors.UserError, match='ckpt-00000001'):
    files.newest(folder / 'ckpt-0000001')


def test_an_interrupted_export_resumes(adams, tmp_path, monkeypatch):
  params, folder = adams
  metadata, _, state = _imported(params, tiny_task.batches()[0], folder)
  whole = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'whole')
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
    exporting.write(state, metadata, tmp_path / 'parts')
  done, saved[:] = saved[1:4], []
  saved.extend([None] * 10)  # No further failure.
  again = files.TensorflowCheckpoint(
    exporting.write(state, metadata, tmp_path / 'parts')
  )
  assert not set(done) & set(saved)
  assert again.shapes == whole.shapes
  for name in whole.shapes:
    np.testing.assert_array_equal(again.read(name), whole.read(name))
  with pytest.raises(errors.UserError, match='already exists'):
    exporting.write(state, metadata, tmp_path / 'parts')
