"""Compares the stock experiments with texts of Lingvo's own Params."""

import gzip

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import lookup
from pax_compat import experiment_sources

text_format = pytest.importorskip('google.protobuf.text_format')
pytest.importorskip('lingvo')

NAMES = [
  'lm.one_billion_wds.OneBWdsGPipeTransformerWPM',
  'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmax',
  'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTiny',
  'lm.synthetic_packed_input.DenseLM13B32x32',
  'lm.synthetic_packed_input.DenseLm128B16x16',
  'lm.synthetic_packed_input.DenseLm128B32x32',
  'lm.synthetic_packed_input.DenseLm128B8x8',
  'lm.synthetic_packed_input.DenseLm12kWide162BAdam16x16',
  'lm.synthetic_packed_input.DenseLm12kWide162BAdam32x32',
  'lm.synthetic_packed_input.DenseLm12kWide162BAdamBS25616x16',
  'lm.synthetic_packed_input.DenseLm12kWide41BAdam16x16',
  'lm.synthetic_packed_input.DenseLm12kWide41BAdam8x8',
  'lm.synthetic_packed_input.DenseLm175B1K',
  'lm.synthetic_packed_input.DenseLm175B32x32',
  'lm.synthetic_packed_input.DenseLm175B32x32DP',
  'lm.synthetic_packed_input.DenseLm175B8x8Decode2D',
  'lm.synthetic_packed_input.DenseLm1T16x16',
  'lm.synthetic_packed_input.DenseLm8B2x2',
  'lm.synthetic_packed_input.DenseLm8B2x2Decode',
  'lm.wiki_bert.MLPerfBertDense13B32x32',
  'lm.wiki_bert.MLPerfBertDense175B',
  'lm.wiki_bert.MLPerfBertDense1T',
  'lm.wiki_bert.MLPerfBertDense1TWider',
  'lm.wiki_bert.MLPerfBertDense500B',
  'lm.wiki_bert.MLPerfBertDense500B2K',
  'lm.wiki_bert.MLPerfTrainBertDense2B',
]


@pytest.fixture(scope='module')
def options():
  return experiment_sources.SourceOptions()


def _stock(shared_data, name):
  """Returns the proto of a stock experiment's Params, floats in 32 bits."""
  pb2 = lingvo_runtime.module('lingvo.core.hyperparams_pb2')
  with gzip.open(shared_data / 'lingvo_stock' / f'{name}.pbtxt.gz') as file:
    return text_format.Parse(file.read(), pb2.Hyperparam())


def _differences(actual, expected, path=''):
  """Yields the paths at which two protos of Params differ."""
  for name in sorted({*actual.items, *expected.items}):
    here = f'{path}.{name}' if path else name
    if name not in actual.items or name not in expected.items:
      yield f'{here}: in one only'
      continue
    a, b = actual.items[name], expected.items[name]
    if a.HasField('param_val') and b.HasField('param_val'):
      yield from _differences(a.param_val, b.param_val, here)
    elif a != b:
      yield f'{here}: {a} is not {b}'


def test_all_stock_experiments_are_there(shared_data):
  texts = (shared_data / 'lingvo_stock').glob('lm.*.trainer_params.pbtxt.gz')
  assert [p.name.split('.trainer_params')[0] for p in sorted(texts)] == NAMES


@pytest.mark.parametrize('name', NAMES)
def test_params_are_those_of_lingvos_own(shared_data, options, name):
  experiment = lookup.find_model_params(name, options)
  for dataset in ('Train', 'Dev', 'Test'):
    actual = experiment.GetDatasetParams(dataset).ToProto()
    expected = _stock(shared_data, f'{name}.{dataset}')
    assert not list(_differences(actual, expected)), dataset
  registry = lingvo_runtime.module('lingvo.model_registry')
  actual = registry.GetParams(name, 'Train').ToProto()
  expected = _stock(shared_data, f'{name}.trainer_params')
  # It has the file and line that registered the experiment.
  del actual.items['model'], expected.items['model']
  assert not list(_differences(actual, expected))


@pytest.mark.parametrize('name', NAMES)
def test_they_have_a_schedule_and_are_listed(options, name):
  experiment = lookup.find_model_params(name, options)
  schedule = experiment.ProgramSchedule()
  assert schedule.train_program.steps_per_loop > 0
  assert schedule.train_program.dataset_name == 'Train'
  assert lookup.names(options)[name].endswith('.')


def test_two_experiments_share_no_mesh(options):
  name = 'lm.synthetic_packed_input.DenseLm8B2x2'
  first = lookup.find_model_params(name, options).Task()
  first.builder.device_mesh[:] = 0
  second = lookup.find_model_params(name, options).Task()
  np.testing.assert_array_equal(second.builder.device_mesh, [range(8)])


def test_synthetic_batches():
  module = _synthetic_module()
  with lingvo_runtime.cluster():
    p = module.SyntheticTrain.Params().Set(batch_size=2, seq_len=3)
    batch = p.Instantiate().GetPreprocessedInputBatch()
  tensors = dict(batch.FlattenItems())
  fields = ('ids', 'labels', 'segment_ids', 'segment_pos')
  assert set(tensors) == {f'tgt.{field}' for field in fields}
  for tensor in tensors.values():
    assert tensor.dtype.name == 'int32'
    np.testing.assert_array_equal(tensor.numpy(), np.ones((2, 3)))


def _synthetic_module():
  module = 'lingvo.tasks.lm.params.synthetic_packed_input'
  lookup.import_module(module)
  return lingvo_runtime.module(module)


def _weights_after(optimizer_params, gradients):
  """Returns a variable's values after each step."""
  tf = lingvo_runtime.module('lingvo.compat')
  with lingvo_runtime.cluster():
    weight = tf.Variable([1.0, -2.0])
    adam = optimizer_params.Instantiate().GetOptimizer(0.1)
    weights = []
    for gradient in gradients:
      adam.apply_gradients([(tf.constant(gradient), weight)])
      weights.append(weight.numpy())
  return np.array(weights)


GRADIENTS = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)


def test_sharded_adam_is_adam():
  sharded = _synthetic_module().ShardedAdam.Params()
  adam = lingvo_runtime.module('lingvo.core.optimizer').Adam.Params()
  np.testing.assert_array_equal(
    _weights_after(sharded, GRADIENTS), _weights_after(adam, GRADIENTS)
  )


def test_sharded_adam_applies_the_mean_of_micro_batches():
  # With a large epsilon, twice the gradient gives a different step.
  sharded = _synthetic_module().ShardedAdam.Params().Set(epsilon=1.0)
  weights = _weights_after(sharded.Copy().Set(num_micro_batches=4), GRADIENTS)
  np.testing.assert_array_equal(weights[:3], [[1.0, -2.0]] * 3)
  np.testing.assert_array_equal(weights[3:7], [weights[3]] * 4)
  means = GRADIENTS.reshape(2, 4, 2).mean(1)
  np.testing.assert_allclose(
    weights[3::4], _weights_after(sharded, means), rtol=1e-6
  )
