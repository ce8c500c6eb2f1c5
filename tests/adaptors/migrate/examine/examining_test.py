"""Tests of findings about a user's experiments and Lingvo's stock ones."""

import gzip
import json
import re

import pytest

from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

from adaptors.lingvo_registry import lookup  # noqa: E402
from adaptors.lingvo_registry.options import LingvoOptions  # noqa: E402
from adaptors.migrate.examine import examining, layer_trees  # noqa: E402
from adaptors.migrate.findings import Status  # noqa: E402
from pax_compat import experiment_sources  # noqa: E402

_MODULE = 'tests.adaptors.migrate.user_experiments'
_OPTIONS = experiment_sources.SourceOptions()


@pytest.fixture(scope='module')
def users():
  """Returns the findings about the user's experiments, by class name."""
  lookup.import_module(_MODULE)
  names = ('Native', 'OwnTask', 'OwnLayer', 'OddValue', 'Broken')
  return {n: examining.examine(f'{_MODULE}.{n}', _OPTIONS) for n in names}


def test_how_each_runs(users):
  assert {name: found.status for name, found in users.items()} == {
    'Native': Status.NATIVE,
    'OwnTask': Status.BRIDGED,
    'OwnLayer': Status.BRIDGED,
    'OddValue': Status.IMPOSSIBLE,
    'Broken': Status.IMPOSSIBLE,
  }


def test_a_native_experiment(users):
  native = users['Native']
  assert native.next_step == 'run it' and not native.problem
  [task] = native.tasks
  assert not task.issues and not task.advice and not task.sketch
  assert task.checkpoints.works
  layers = {layer.name: layer for layer in layer_trees.descendants(task.layers)}
  assert layers['trans[0-3]'].count == 4
  assert layers['trans[0-3]'].is_native
  assert layers['emb'].class_path.endswith('.EmbeddingLayer')
  assert layers['emb'].becomes.startswith('lm/')
  assert native.parameters == task.layers.parameters
  # Adam has two moments of each weight, and some counts.
  memory = task.memory
  assert memory.weights == memory.gradients == 4 * native.parameters
  assert 0 <= memory.optimizer - 2 * memory.weights < 100
  assert memory.per_device == memory.total
  assert native.schedule == (
    'every 50 steps it evaluates Dev, all of it if it is finite (in Lingvo 11'
    ' batches)',
  )
  train, dev, _ = native.inputs
  assert (train.dataset, train.kind) == ('Train', 'records (text)')
  assert 'LingvoInputAdaptor, by a TensorFlow session' in train.driven
  assert 'LingvoEvalAdaptor' in dev.driven and 'batches of 16' in dev.driven
  assert (16, 256) in train.shapes
  assert any('position' in remark for remark in train.remarks)


def test_a_custom_task(users):
  found = users['OwnTask']
  [task] = found.tasks
  own = f'{_MODULE}.Scorer'
  assert found.next_step.startswith('run it as it is, or make it native: tran')
  assert (task.issues[0].path, task.issues[0].class_path) == ('task', own)
  first = task.advice[0]
  assert f"@translates('{own}')" in first
  assert 'it has ComputeLoss, ComputePredictions' in first
  assert 'have a translation: EmbeddingLayer, FCLayer' in first
  assert 'Louder' in first.split('These do not: ')[1]
  assert "emb = registry.translate(view.child('emb'))" in task.sketch
  compile(task.sketch, 'sketch', 'exec')
  children = {layer.name: layer for layer in task.layers.children}
  assert children['emb'].is_native and children['hidden'].is_native
  louder = children['louder']
  assert not louder.is_native
  assert 'overrides FProp' in louder.issues[0].message
  assert all(layer.is_native for layer in louder.children)
  # A table, a layer, a feed-forward of two layers, and a normalisation.
  d, v = 8, 32
  sizes = [v * d, d * d + d, 2 * (d * 2 * d) + 3 * d + 2 * d]
  assert [c.parameters for c in task.layers.children] == sizes
  assert found.parameters == sum(sizes)
  assert task.memory.weights == 4 * sum(sizes)
  assert task.checkpoints.works


def test_a_layer_that_overrides_its_base_class(users):
  [task] = users['OwnLayer'].tasks
  [issue] = task.issues
  assert issue.path == 'task.lm.trans_tpl.tr_fflayer_tpl'
  assert issue.class_path == f'{_MODULE}.Louder'
  assert not issue.field and 'overrides FProp' in issue.message
  layers = {one.class_path: one for one in layer_trees.descendants(task.layers)}
  louder = layers[f'{_MODULE}.Louder']
  assert not louder.is_native and not louder.issues[0].field
  attention = 'lingvo.core.layers_with_attention.TransformerAttentionLayer'
  assert layers[attention].is_native
  assert users['OwnLayer'].parameters == users['Native'].parameters


def test_an_unknown_value(users):
  found = users['OddValue']
  [task] = found.tasks
  [issue] = task.issues
  path = 'task.lm.trans_tpl.tr_atten_tpl.residual_function'
  assert (issue.path, issue.field) == (path, 'residual_function')
  assert issue.value == repr('<script>document.title = "mine"</script>')
  assert found.problem == task.problem != ''
  assert found.next_step.startswith('repair it: ')
  assert task.memory is None and found.inputs and found.schedule


def test_params_that_cannot_be_made(users):
  found = users['Broken']
  assert '.Broken.Model() fails: ValueError: no such thing' in found.problem
  assert 'user_experiments.py:' in found.problem
  assert not found.tasks and not found.inputs


def test_an_unknown_name_is_a_finding():
  found = examining.examine('lm.python_docs.Nothing', _OPTIONS)
  assert found.status is Status.IMPOSSIBLE
  assert 'lm.python_docs.Nothing' in found.problem


def test_a_task_that_the_user_has_translated():
  """The fields of its batches are not known, so its layers are Lingvo's."""
  lookup.import_module(_MODULE)
  found = examining.examine(f'{_MODULE}.Translated', _OPTIONS)
  assert found.status is Status.NATIVE
  [task] = found.tasks
  assert task.layers.is_native
  sizes = {one.name: one.parameters for one in task.layers.children}
  assert sizes == {'emb': 28, 'first': 20, 'second': 10}
  assert found.parameters == 58
  assert (
    task.memory is None
    and 'synthetic batches exist only' in task.memory_problem
  )


def test_a_component_without_a_translation():
  lookup.import_module(_MODULE)
  found = examining.examine(f'{_MODULE}.Composed', _OPTIONS)
  assert found.status is Status.PARTLY
  [task] = found.tasks
  [advice] = task.advice
  assert advice.count('@translates') == 1 and '@translates_part' in advice
  [issue] = task.issues
  assert issue.class_path == f'{_MODULE}.Doubling'
  layers = {one.name: one for one in layer_trees.descendants(task.layers)}
  assert not layers['own'].is_native and not layers['first'].is_native
  for name in ('known', 'bent', 'emb'):
    assert layers[name].is_native, name
  assert found.next_step.endswith(
    f'make it native: translate {_MODULE}.Doubling'
  )


def test_several_tasks():
  lookup.import_module(_MODULE)
  found = examining.examine(f'{_MODULE}.Several', _OPTIONS)
  assert found.status is Status.NATIVE, found.problem
  one, other = found.tasks
  assert (one.name, other.name) == ('one', 'other')
  assert found.parameters == 2 * one.parameters
  assert found.bytes_per_device == 2 * one.memory.per_device
  assert [data.dataset for data in found.inputs] == ['Train_one', 'Train_other']
  assert found.schedule == ('no program schedule: evaluation only at the end',)


def test_several_tasks_of_which_one_has_no_translation():
  lookup.import_module(_MODULE)
  found = examining.examine(f'{_MODULE}.Mixed', _OPTIONS)
  assert [t.status for t in found.tasks] == [Status.NATIVE, Status.BRIDGED]
  assert found.status is Status.BRIDGED, found.problem
  assert f'{_MODULE}.Scorer' in found.next_step


def test_several_tasks_that_share_a_layer():
  """They are bridged, as in the run, also where each could be translated."""
  lookup.import_module(_MODULE)
  found = examining.examine(f'{_MODULE}.Sharing', _OPTIONS)
  assert [t.status for t in found.tasks] == [Status.BRIDGED] * 2, found.problem
  assert 'shares layers with other tasks' in found.tasks[0].issues[0].message
  assert found.status is Status.BRIDGED and not found.problem
  first, second = ({x.name for x in t.layers.children} for t in found.tasks)
  assert 'encoder' in first & second


_LM = 'lm.synthetic_packed_input.'


def test_memory_per_device_of_a_model_for_a_pod():
  found = examining.examine(f'{_LM}DenseLm8B2x2', _OPTIONS)
  [task] = found.tasks
  memory = task.memory
  assert memory.mesh == {'data': 1, 'mdl': 8}
  assert found.parameters == pytest.approx(8.85e9, rel=1e-3)
  # All large weights are sharded over all devices.
  assert memory.per_device == pytest.approx(memory.total / 8, rel=1e-3)
  assert memory.weights == 4 * found.parameters
  # Adafactor keeps rows and columns.
  assert memory.optimizer < memory.weights / 1000
  assert found.inputs[0].kind.startswith('synthetic')


def test_a_mesh_that_does_not_divide_a_vocabulary():
  found = examining.examine('lm.wiki_bert.MLPerfTrainBertDense2B', _OPTIONS)
  [task] = found.tasks
  assert found.status is Status.NATIVE
  assert task.memory.mesh == {'data': 16, 'mdl': 4} and not task.misfit
  [train, *_] = found.inputs
  assert train.class_path.endswith('TFRecordBertInput')
  assert train.kind.startswith('custom reader of ')


def _of_old_run(shared_data, folder, name, turned_on=None):
  """Examines an experiment by the Params of an old run.

  Args:
    shared_data: the folder of data.
    folder: of the run, which is made.
    name: of the experiment.
    turned_on: name of a field of its Params that is made true, or None.
  """
  texts = shared_data / 'lingvo_stock'
  with gzip.open(texts / f'{name}.trainer_params.pbtxt.gz') as source:
    text = source.read()
  if turned_on:
    value = rf'("{turned_on}"\s+value {{\s+bool_val: )false'.encode()
    text, count = re.subn(value, rb'\1true', text)
    assert count == 1
  (folder / 'trainer_params.pbtxt').write_bytes(text)
  own = LingvoOptions(lingvo_logdir=str(folder))
  options = experiment_sources.SourceOptions(own=(own,))
  return examining.examine(str(folder), options)


def test_lingvos_own_image_classifier(shared_data, tmp_path):
  found = _of_old_run(shared_data, tmp_path, 'image.mnist.LeNet5')
  assert found.status is Status.NATIVE
  assert found.parameters == 500 + 25_000 + 735_300 + 3_010


def test_lingvos_own_recurrent_translator(shared_data, tmp_path):
  found = _of_old_run(shared_data, tmp_path, 'mt.wmt14_en_de.WmtEnDeRNMT')
  assert found.status is Status.NATIVE
  assert found.command.startswith('python -m pax_compat.main --lingvo_logdir=/')
  assert found.parameters == 378_866_176
  [task] = found.tasks
  assert task.memory.per_device == task.memory.total


def test_a_bridged_translator(shared_data, tmp_path):
  name = 'mt.xendec.wmt14_en_de.WmtEnDeXEnDec'
  found = _of_old_run(shared_data, tmp_path, name, 'use_normalized_atten')
  assert found.status is Status.BRIDGED
  [task] = found.tasks
  layers = {one.name: one for one in layer_trees.descendants(task.layers)}
  assert layers['trans[0-5]'].count == 6 and layers['trans[0-5]'].is_native
  assert not layers['dec'].is_native


def test_errors_of_a_users_class_are_findings(monkeypatch):
  lookup.import_module(_MODULE)
  cls = type(lookup.find_model_params(f'{_MODULE}.Native', _OPTIONS))

  def leave(self):
    raise SystemExit(3)

  def fail(self):
    raise KeyError('nothing')

  for method, raising in (('ProgramSchedule', fail), ('Task', leave)):
    monkeypatch.setattr(cls, method, raising)
    found = examining.examine(f'{_MODULE}.Native', _OPTIONS)
    assert found.status is Status.IMPOSSIBLE
    assert 'examining_test.py:' in found.problem
    # Findings before the error are kept.
    assert bool(found.tasks) == (method == 'ProgramSchedule')


def test_a_vocabulary_that_is_not_there(shared_data, tmp_path):
  name = 'asr.librispeech.Librispeech960Wpm'
  found = _of_old_run(shared_data, tmp_path, name)
  assert found.status is Status.IMPOSSIBLE
  assert found.next_step.startswith('provide the file: ')
  assert 'wpm_16k_librispeech.vocab' in found.next_step


def test_it_can_be_written_as_json(users):
  for found in users.values():
    data = json.loads(json.dumps(found.as_dict()))
    assert data['name'] == found.name
    assert data['parameters'] == found.parameters
