"""Import and export of multi-task states with real TensorFlow checkpoints."""

import numpy as np
import pytest

from adaptors.bridge import multi_task as bridged_tasks
from adaptors.checkpoints import (
  exporting,
  files,
  importing,
  mapping,
  task_metadata,
)
from adaptors.translate.tasks import multi_task
from pax_compat import base_layer, checkpoints, errors, learners
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.adaptors import native_library
from tests.adaptors.bridge import sharing_model
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, tiny_model, tiny_task

pytestmark = native_library.NEEDS_LINGVO

# The task of each step; at the checkpoint neither has made all its steps.
_ORDER = ('tag', 'tag', 'tag', 'words', 'words') + ('words', 'tag') * 2
_SAVED = 5


def _params(*, in_scopes: bool):
  model = tiny_model.params(
    train=dict(ema_decay=0.5),
    tag=dict(optimizer=tiny_task.optimizer('Adam')),
    words=dict(
      learner=[
        tiny_task.learner(
          optimizer=tiny_task.optimizer('Adam', beta2=0.99),
          bprop_variable_filter='first',
        ),
        tiny_task.learner(
          name='others',
          loss_name='loss',
          optimizer=tiny_task.optimizer('Adagrad'),
          bprop_variable_exclusion='first',
        ),
      ]
    ),
  )
  model.task_name_var_scope = in_scopes
  if not in_scopes:
    model.task_params.tag.name = 'tagged'
  return model


@pytest.fixture(scope='module', params=[True, False])
def lingvos(request, tmp_path_factory):
  """Returns Params, data, the folder of checkpoints and Lingvo's weights."""
  folder = tmp_path_factory.mktemp('lingvos')
  params = _params(in_scopes=request.param)
  batches = tiny_task.batches([1.0, 3.0, 0.5, 2.0, 1.5, 1.0, 0.7, 1.2, 0.9])
  data = list(zip(_ORDER, batches, strict=True))
  return params, data, folder, lingvo_runs.train_several(params, data, folder)


def _imported(params, batch, checkpoint, translated=None):
  """Returns the metadata, the program and the state of a checkpoint."""
  translated = translated or multi_task.translate_model(params, 'both').task
  example = NestedMap(tag=batch, words=batch)
  made = program.create(
    translated.config.Instantiate(),
    partitioning.create_mesh(None, None),
    example,
  )
  metadata = task_metadata.of_several(params, translated)
  return (
    metadata,
    made,
    importing.read_state(checkpoint, metadata, made, example),
  )


def _check_same(exported, original):
  assert exported.shapes == original.shapes
  for name in original.shapes:
    assert exported.read(name).tobytes() == original.read(name).tobytes(), name


def test_there_and_back(lingvos, tmp_path):
  params, data, folder, weights = lingvos
  original = files.newest(folder / f'ckpt-{_SAVED:08d}')
  metadata, made, state = _imported(params, data[0][1], original)
  prefix = exporting.write(state, metadata, tmp_path / 'exported')
  _check_same(files.TensorflowCheckpoint(prefix), original)
  for task, batch in data[_SAVED:]:
    state, _ = made.train_step(state, NestedMap({task: batch}))
  assert int(state.step) == len(_ORDER)
  params_of = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  ours = metadata.variables.to_lingvo(params_of)
  for path, value in weights[len(_ORDER)].items():
    parity.assert_close(ours[path], value, 1e-5, path)
  # Lingvo continues from our state.
  restored = exporting.write(state, metadata, tmp_path / 'trained')
  again = lingvo_runs.train_several(
    params, data[:1], tmp_path, restored=restored
  )
  assert int(files.newest(tmp_path).read('global_step')) == len(_ORDER) + 1
  for path, value in ours.items():
    moved = not np.array_equal(again[1][path], value)
    assert moved == path.startswith('tag.'), path


def test_equal_names_of_tasks_are_refused():
  """Lingvo builds no such model either."""
  params = _params(in_scopes=False)
  params.task_params.tag.name = params.task_params.words.name
  translated = multi_task.translate_model(params, 'both').task
  with pytest.raises(errors.UserError, match='words has a variable tiny/emb'):
    task_metadata.of_several(params, translated)
  built = tiny_model.built_in_lingvo(params, tiny_task.batches()[0])
  with pytest.raises(ValueError, match='tiny/emb/var_0/var already exists'):
    with built:
      pass


def _sharing(train_words='own', optimizer='Adam'):
  """Returns Params of a model that shares an encoder of `tag`."""
  params = sharing_model.params(ema_decay=0.5)
  params.task_params.tag.train.optimizer = tiny_task.optimizer(optimizer)
  params.task_params.words.train.Set(
    optimizer=tiny_task.optimizer(optimizer), bprop_variable_filter=train_words
  )
  return params


@pytest.mark.slow
@pytest.mark.parametrize('fields', [('', 'SGD'), ('own', 'Adam')])
def test_tasks_that_share_an_encoder(fields, tmp_path):
  """Which both train, or only one of them."""
  params = _sharing(*fields)
  data = list(zip(_ORDER[1:6], tiny_task.batches([1.0] * 5), strict=True))
  weights = lingvo_runs.train_several(params, data, tmp_path)
  original = files.newest(tmp_path / 'ckpt-00000003')
  assert 'tag/tag/encoder/w/var' in original.shapes
  translated = bridged_tasks.translate_model(params, 'both', 'auto').task
  metadata, made, state = _imported(
    params, data[0][1], original, translated=translated
  )
  prefix = exporting.write(state, metadata, tmp_path / 'exported')
  _check_same(files.TensorflowCheckpoint(prefix), original)
  for task, batch in data[3:]:
    restored, before = exporting.write(state, metadata, tmp_path / task), task
    state, _ = made.train_step(state, NestedMap({task: batch}))
  params_of = learners.by_path(state.mdl_vars[base_layer.PARAMS])
  for path, value in metadata.variables.to_lingvo(params_of).items():
    parity.assert_close(value, weights[5][path], 1e-5, path)
  again = lingvo_runs.train_several(
    params, data[-1:], tmp_path / before, restored=restored
  )
  for path, value in again[1].items():
    parity.assert_close(value, weights[5][path], 1e-5, path)


def test_slots_of_shared_variables_are_refused():
  """Lingvo builds no such model either."""
  params, batch = _sharing('', 'Adam'), tiny_task.batches()[0]
  translated = bridged_tasks.translate_model(params, 'both', 'auto').task
  made = program.create(
    translated.config.Instantiate(),
    partitioning.create_mesh(None, None),
    NestedMap(tag=batch, words=batch),
  )
  metadata = task_metadata.of_several(params, translated)
  with pytest.raises(errors.UserError, match='encoder/w/var: several tasks'):
    list(mapping.leaves_of(made.abstract_state, metadata))
  with pytest.raises(ValueError, match='already exists'):
    with tiny_model.built_in_lingvo(params, batch):
      pass


def test_powers_that_contradict_each_other(lingvos):
  """As from a task trained with other decays."""
  params, data, folder, _ = lingvos
  params = params.Copy()
  params.task_params.tag.train.optimizer.beta1 = 0.5
  with pytest.raises(errors.UserError, match=r"Adam's powers 0\.656.* of 0\.5"):
    _imported(params, data[0][1], files.newest(folder / 'ckpt-00000003'))


def test_what_eager_mode_wrote(tmp_path):
  params, batch = _params(in_scopes=True), tiny_task.batches()[0]
  _, step = lingvo_runs.train_several_eagerly(params, batch, tmp_path, 'V1')
  _, _, state = _imported(params, batch, files.newest(tmp_path))
  arrays = checkpoints.state_paths(state)
  # Each step trained both tasks, and Lingvo counted both.
  assert int(arrays['step']) == step >= 4
  for count in ('tag.optimizer.0.1', 'words.optimizer.main.0.1'):
    assert int(arrays[f'opt_state.{count}.count']) == 2
  assert all(np.any(array) for path, array in arrays.items() if '.nu.' in path)


def test_equal_names_of_eager_mode_are_refused(tmp_path):
  params, batch = _params(in_scopes=False), tiny_task.batches()[0]
  lingvo_runs.train_several_eagerly(params, batch, tmp_path, 'V2')
  with pytest.raises(errors.UserError, match='two variables called both/both'):
    files.TensorflowCheckpoint(next(tmp_path.rglob('*.index')))
