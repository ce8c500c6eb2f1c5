"""Tests of `params.shrinking`, on the stock experiments in real Lingvo."""

import ast

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.params import shrinking
from pax_compat import errors
from tests.adaptors import small_experiments
from tests.adaptors.bridge.families import milan

pytest.importorskip('lingvo')

GPIPE = 'lm.one_billion_wds.OneBWdsGPipeTransformerWPM'
RNN = 'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmax'
DECODER = 'lm.synthetic_packed_input.DenseLm8B2x2'
REPEATED = 'lm.synthetic_packed_input.DenseLm175B8x8Decode2D'
ENCODER = 'lm.wiki_bert.MLPerfBertDense1T'
NAMES = [GPIPE, RNN, f'{RNN}Tiny', DECODER, REPEATED, ENCODER]


def _task(name, sizes=None):
  return shrinking.shrink(small_experiments.find(name).Task(), sizes)


@pytest.mark.parametrize('name', NAMES)
def test_small_experiments_run_in_lingvo(name):
  params = small_experiments.task_params(name)
  batch = small_experiments.batch(params)
  metrics, shapes = small_experiments.forward(params, batch)
  assert np.isfinite(metrics['loss']).all() and metrics['loss'][0] > 0
  assert sum(map(np.prod, shapes.values())) < 100_000


@pytest.mark.parametrize('name', NAMES)
def test_what_was_shrunk_does_not_shrink_more(name):
  small = _task(name)
  assert shrinking.shrink(small).ToText() == small.ToText()


@pytest.mark.parametrize('name', NAMES)
def test_nothing_but_sizes_changes(name):
  task = small_experiments.find(name).Task()
  before = task.ToText()
  lines = dict(line.split(' : ', 1) for line in _lines(_task(name)))
  assert task.ToText() == before
  for line in _lines(task):
    path, value = line.split(' : ', 1)
    if lines.get(path) == value or 'device_mesh' in path:
      continue
    old, new = map(np.array, map(ast.literal_eval, (value, lines[path])))
    assert old.shape == new.shape and (new <= old).all(), path


def _lines(params):
  # The array of devices has several lines.
  return [x for x in params.ToText().split('\n') if ' : ' in x]


def test_widths_keep_their_proportions():
  small = _task(DECODER).builder
  assert (small.model_dim, small.ff_dim) == (16, 128)
  inner = small.attention_num_heads * small.attention_key_value_dim
  assert (small.attention_num_heads, inner) == (4, 32)
  # As at full size: the encoders' heads share keys and values.
  encoder = _task(ENCODER).builder
  assert encoder.attention_num_memory_heads == 1


def test_recurrent_layers():
  small = _task(RNN).lm
  cells = small.rnns.cell_tpl
  assert [
    (c.num_input_nodes, c.num_hidden_nodes, c.num_output_nodes) for c in cells
  ] == [(16, 128, 16)] * 2
  # The number that means that it is not set.
  assert small.rnns.num_input_nodes <= 0
  assert small.softmax.input_dim == small.emb.embedding_dim == 16
  assert small.softmax.num_classes == small.emb.vocab_size == 128
  assert (small.softmax.num_shards, small.softmax.num_sampled) == (8, 16)
  assert _task(f'{RNN}Tiny').lm.rnns.cell_tpl[0].num_hidden_nodes == 32


def test_a_pipeline_keeps_its_parts():
  stack = _task(GPIPE).lm.stack
  assert stack.num_encoder_layers == 4 and stack.splits == [1, 2, 3, 4]
  assert stack.num_micro_batches == 4 and stack.micro_batch_size == 1
  assert stack.softmax_tpl.num_shards == 16
  deep = _task(GPIPE, shrinking.Sizes(layers=6)).lm.stack
  assert deep.num_encoder_layers == 8 and deep.splits == [2, 4, 6, 8]


def test_stages_of_a_partitioned_pipeline_keep_a_layer():
  task = small_experiments.find(DECODER).Task()
  task.Set(num_spmd_pipeline_stages=4, num_spmd_pipeline_microbatches=16)
  small = shrinking.shrink(task)
  assert small.num_transformer_layers == 4
  assert small.num_spmd_pipeline_microbatches == 4


def test_meshes_have_one_device():
  small = _task(ENCODER).builder
  assert small.device_mesh.shape == (1, 1)
  assert small.device_mesh_shape == [1, 1]
  assert small.model_dim_reshape_segments == [2, 2]
  assert _task(REPEATED).builder.model_dim_reshape_segments == 2


def test_adafactor_factors_what_it_factored():
  small = _task(DECODER)
  least = small.train.optimizer.min_dim_size_to_factor
  assert small.builder.attention_num_heads < least <= small.builder.model_dim


def test_mixtures_of_experts():
  task = small_experiments.find(DECODER).Task()
  task.builder.Set(e_dim=512, moe_hidden_dim=32768, num_groups=64, c_dim=4096)
  small = shrinking.shrink(task).builder
  assert (small.e_dim, small.moe_hidden_dim) == (4, 64)
  assert small.num_groups == 4 and small.c_dim == 32


def test_inputs():
  small = shrinking.shrink(small_experiments.find(RNN).Train())
  assert small.bucket_upper_bound == [10, 16]
  assert small.bucket_batch_limit == [4, 4]
  assert small.target_max_length == 16
  assert small.tokenizer.vocab_size == 128
  assert small.file_buffer_size == 10_000_000
  records = shrinking.shrink(small_experiments.find(ENCODER).Train())
  assert (records.batch_size, records.max_sequence_length) == (4, 16)
  assert records.max_predictions_per_seq == 2
  synthetic = shrinking.shrink(small_experiments.find(DECODER).Train())
  assert (synthetic.batch_size, synthetic.seq_len) == (4, 16)


def test_layers_of_the_batch_major_family():
  attention = lingvo_runtime.module('lingvo.core.batch_major_attention')
  stack = attention.StackedTransformerLayers.Params().Set(
    mdl_dim=512, hidden_dim=2048, num_atten_heads=8, num_layers=6
  )
  small = shrinking.shrink(stack)
  assert (small.mdl_dim, small.hidden_dim) == (32, 128)
  assert (small.num_atten_heads, small.num_layers) == (4, 2)


def test_computing_in_32_bits():
  tf = lingvo_runtime.module('tensorflow')
  small = shrinking.in_float32(_task(DECODER))
  assert small.fprop_dtype is small.builder.fprop_dtype is tf.float32
  assert small.train.lr_schedule.fprop_dtype is None


@pytest.mark.parametrize('sizes', [{'width': 0}, {'layers': 1.5}])
def test_sizes_are_whole_numbers(sizes):
  (name,) = sizes
  with pytest.raises(errors.UserError, match=f'Sizes.{name} is'):
    shrinking.Sizes(**sizes)


def test_widths_of_stored_features_stay():
  task = milan.task_params()
  small = shrinking.shrink(task, shrinking.Sizes(width=4, layers=1))
  towers = task.dual_encoder.encoder_configs
  for name, tower in small.dual_encoder.encoder_configs.items():
    assert tower.output_dim == towers[name].output_dim
  text = small.ToText()
  assert 'input_dim : 6' in text and 'input_dim : 8' in text


def test_points_of_a_sampler():
  """Which one preprocessor takes for the centers and for their features."""
  preprocessors = lingvo_runtime.module('lingvo.tasks.car.input_preprocessors')
  sampler = preprocessors.SparseSampler.Params()
  small = shrinking.shrink(sampler.Set(num_centers=1024, num_neighbors=512))
  assert (small.num_centers, small.num_neighbors) == (16, 16)


def test_grids_and_pillars_of_a_detector():
  """The grid of a backbone's input, and the smaller one of its output."""
  preprocessors = lingvo_runtime.module('lingvo.tasks.car.input_preprocessors')
  points = preprocessors.PointsToGrid.Params().Set(grid_size=(512, 512, 1))
  cells = preprocessors.GridAnchorCenters.Params().Set(grid_size=(256, 256, 1))
  pillars = preprocessors.GridToPillars.Params()
  small = shrinking.shrink(points)
  assert small.grid_size == (32, 32, 1)
  assert shrinking.shrink(small).grid_size == (32, 32, 1)
  assert shrinking.shrink(cells).grid_size == (16, 16, 1)
  assert shrinking.shrink(pillars).num_pillars == 16
