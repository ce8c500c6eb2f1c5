"""The experiments of Pax's modules against what was recorded of Pax.

Every field of every task, every variable, and at a tiny size losses, metrics
and gradients.
"""

import json
import pathlib

import jax.numpy as jnp
import pytest

from adaptors.pax_names.check import recording, variables
from adaptors.pax_names.check.numbers import of_model
from lm_tasks.params import c4, c4_multislice, lm_cloud
from pax_compat import errors, experiment_registry, layers
from pax_compat.experiment_sources import SourceOptions
from pax_compat.experiments import class_attributes
from tests.pax import fields, numbers, recorded, tiny

_MODULES = {'lm_cloud': lm_cloud, 'c4': c4, 'c4_multislice': c4_multislice}
# The experiment of Pax's documents that later versions of Pax replaced.
_OLDER = 'c4.C4SpmdPipelineGpt3SmallAdam64Replicas'
_NEWER = 'c4.C4SpmdPipelineGpt3SmallAdam8Replicas'


def _class(name: str) -> type:
  module, cls = name.split('.')
  return getattr(_MODULES[module], cls)


def _some_slow(names, quick):
  """Returns parameters: those that are not quick are slow."""
  slow = [pytest.mark.slow]
  return [
    pytest.param(name, marks=[] if name in quick else slow) for name in names
  ]


def test_the_names_are_those_of_pax():
  prefix = 'tasks.lm.params.'
  known = experiment_registry.names(SourceOptions())
  modules = tuple(f'{prefix}{module}.' for module in _MODULES)
  ours = {
    name.removeprefix(prefix) for name in known if name.startswith(modules)
  }
  assert ours == {*recorded.tasks(), _OLDER}
  assert len(recorded.tasks()) == 55
  for spelling in ('paxml.tasks.lm.params.', prefix, 'paxml.tasks.lm.', ''):
    experiment = experiment_registry.find(
      f'{spelling}{_OLDER}', SourceOptions()
    )
    assert type(experiment) is c4.C4SpmdPipelineGpt3SmallAdam64Replicas


def test_every_field():
  found = [
    f'{name} {line}'
    for name, text in recorded.tasks().items()
    for line in fields.unexplained(_class(name)().task(), text)
  ]
  assert not found, '\n'.join(found[:40])


def test_the_fields_of_the_older_name():
  text = recorded.tasks()[_NEWER]
  for path, value in (
    (r'ici_mesh_shape', '[4, 1, 4, 4]'),
    (r'vocab_size', '50257'),
    (r'num_pipeline_stages', '4'),
    (r'pipeline_microbatch_size', '16'),
    (r'num_layers', '6'),
  ):
    text = fields.replaced(text, path, value)
  task = c4.C4SpmdPipelineGpt3SmallAdam64Replicas().task()
  assert fields.unexplained(task, text) == []


def test_inputs_that_are_broadcast_to_stages(caplog):
  caplog.set_level('INFO')
  cls = lm_cloud.LmCloudSpmdPipelineMultislice2BCircular
  broadcasts = type('Broadcasts', (cls,), {'PIPELINE_BROADCAST_INPUTS': True})
  plain = cls().task()
  assert not caplog.records
  assert broadcasts().task() == plain
  [line] = caplog.messages
  assert line.startswith('pipeline_broadcast_inputs=True has no effect')


def test_the_comparison_finds_differences():
  text = recorded.tasks()['lm_cloud.LmCloudTransformerAdamTest']
  task = lm_cloud.LmCloudTransformerAdamTest().task()
  task.model.lm_tpl.softmax_tpl.soft_cap_logits = 30.0
  task.model.sum_loss = True
  task.train.learner.name = 'other'
  found = fields.unexplained(task, fields.replaced(text, 'num_layers', '3'))
  assert [line.partition(':')[0] for line in found] == [
    'model.lm_tpl.softmax_tpl.soft_cap_logits',
    'model.lm_tpl.stacked_transformer_tpl.num_layers',
    'train.learner.name',
    'model.sum_loss',
  ]


@pytest.mark.parametrize(
  'name',
  _some_slow(
    recorded.variables(),
    quick=[
      'lm_cloud.LmCloudSpmd2B',
      'lm_cloud.LmCloudSpmdPipelineMultislice2BCircular',
    ],
  ),
)
def test_every_variable(name):
  cls = _class(name)
  found = variables.of_model(
    cls().task().model, rows=tiny.rows_of_microbatches(cls)
  )
  assert found == variables.of_pax(recorded.variables()[name])


@pytest.mark.parametrize(
  'name',
  _some_slow(
    tiny.EXPERIMENTS,
    quick=['lm_cloud.LmCloudTransformerAdam', 'c4.C4Spmd1BAdam4Replicas'],
  ),
)
def test_losses_metrics_and_gradients(name):
  pax = recorded.numbers()[name]
  model = tiny.shrunk(_class(name)).task().model
  numbers.check(of_model(model, pax.params, tiny.batch()), pax)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    'c4.C4Spmd1BAdam4Replicas',
    'c4.C4SpmdPipelineGpt3SmallAdam8Replicas',
    'c4_multislice.C4Spmd22BAdam2xv4_128',
    'lm_cloud.LmCloudSpmd2B',
    'lm_cloud.LmCloudSpmdPipeline9B',
    'lm_cloud.LmCloudTransformerAdam',
  ],
)
def test_another_recording(name, shared_data):
  path = shared_data / 'pax_numbers' / f'{name}.npz'
  attributes, batch, pax = _of_folder(path)
  cls = _class(name)
  model = type(cls.__name__, (cls,), attributes)().task().model
  numbers.check(of_model(model, pax.params, batch), pax)


def _of_folder(path: pathlib.Path):
  """Returns the class attributes, the batch and the numbers of a recording."""
  attributes = json.loads(path.with_suffix('.json').read_text())
  attributes['FPROP_DTYPE'] = jnp.dtype(attributes['FPROP_DTYPE']).type
  return attributes, *recording.of_file(path)


def test_batches_may_be_fractions():
  for cls in (c4.C4Spmd1BAdam4Replicas, lm_cloud.LmCloudSpmd2B):
    changed = class_attributes.changed(cls(), ['PERCORE_BATCH_SIZE=0.5'])
    assert changed.PERCORE_BATCH_SIZE == 0.5


def test_a_run_ends_at_the_target():
  stop = c4.EarlyStoppingFn.config(target_log_pplx=2.69).Instantiate()
  for value, ends in ((2.7, False), (2.69, True)):
    metrics = {'eval_C4Validation/log_pplx': value}
    assert stop(metrics, None, 100, False, None) is ends
  assert not stop({'eval_train/log_pplx': 1.0}, None, 100, False, None)


def test_a_schedule_that_fits_the_batch():
  class Small(c4.C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas):
    PERCORE_BATCH_SIZE = 3072

  optimizer = Small().task().train.learner.optimizer
  assert optimizer.learning_rate == 2e-5
  schedule = optimizer.lr_schedule
  assert (schedule.warmup_steps, schedule.decay_start) == (133, 134)
  assert schedule.decay_end == 54_300
  Small.PERCORE_BATCH_SIZE = 3585
  assert Small().task().train.learner.optimizer.learning_rate == 3e-5
  Small.PERCORE_BATCH_SIZE = 0.1
  with pytest.raises(errors.UserError, match='global batch: 0 examples'):
    Small().task()


@pytest.mark.parametrize(
  'base, fields, message',
  [
    (c4.C4SpmdAdam, dict(NUM_HEADS=None), 'neither NUM_HEADS nor DIMS_PER'),
    (lm_cloud.LmCloudSpmd2B, dict(MODEL_DIMS=100), 'a multiple of DIMS_PER'),
    (lm_cloud.LmCloudSpmd2B, dict(NUM_HEADS=4), r'NUM_HEADS times .* 4 \* 128'),
    (lm_cloud.LmCloudSpmdPipeline9B, dict(NUM_STAGES=3), 'are for 16 stages'),
    (lm_cloud.LmCloudSpmdPipeline9B, dict(NUM_LAYERS=3), 'there are 16 stages'),
    (lm_cloud.LmCloudSpmdPipeline9B, dict(ICI_MESH_SHAPE=[4]), '4 axes'),
    (c4.C4SpmdAdam, dict(LR_SCHEDULE='constat'), 'did you mean: constant'),
  ],
)
def test_attributes_that_are_not_valid(base, fields, message):
  with pytest.raises(errors.UserError, match=message):
    type('Mine', (base,), fields)().task()


def test_products_in_8_bits():
  class Fp8(lm_cloud.LmCloudSpmd2B):
    USE_FP8 = True

  stack = Fp8().task().model.lm_tpl.stacked_transformer_tpl
  layer = stack.block.transformer_layer_params_tpl
  for product in (
    layer.tr_atten_tpl.proj_tpl,
    layer.tr_atten_tpl.combined_qkv_proj_tpl,
    layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl,
  ):
    assert product.einsum_tpl.cls is layers.Fp8EinsumOp
