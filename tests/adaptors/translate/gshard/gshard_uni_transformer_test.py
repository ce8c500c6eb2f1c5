"""GShard's language models in Lingvo and here.

The stock experiments at reduced size, and what a user may set that they do not.
"""

import re

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.tasks import single as task_translation
from pax_compat import base_layer, errors, learners
from tests.adaptors import small_experiments
from tests.adaptors.translate import task_parity

_PREFIX = 'lm.synthetic_packed_input.'
# By what is left of their differences at reduced size, where meshes have one
# device: those in a row have the same Params then.
_GROUPS = (
  (
    'DenseLm8B2x2',
    'DenseLm128B8x8',
    'DenseLm128B16x16',
    'DenseLm128B32x32',
    'DenseLm1T16x16',
  ),
  ('DenseLm8B2x2Decode',),
  (
    'DenseLm175B32x32',
    'DenseLm175B32x32DP',
    'DenseLm175B1K',
    'DenseLM13B32x32',
  ),
  ('DenseLm175B8x8Decode2D',),
  (
    'DenseLm12kWide41BAdam16x16',
    'DenseLm12kWide162BAdam16x16',
    'DenseLm12kWide162BAdam32x32',
  ),
  ('DenseLm12kWide41BAdam8x8', 'DenseLm12kWide162BAdamBS25616x16'),
)
_STEPS = 20


def _params(name='DenseLm8B2x2', builder=(), **fields):
  """Returns small Params of a stock experiment.

  Args:
    name: of the experiment.
    builder: fields of its builder.
    **fields: of the task.
  """
  params = small_experiments.task_params(_PREFIX + name)
  params.builder.Set(**dict(builder))
  return params.Set(**fields)


def _text(params):
  """Returns Params as text without what concerns meshes and loops."""
  skipped = re.compile(r'.*(_split|tpu_steps_per_loop) :')
  lines = params.ToText().splitlines()
  return [line for line in lines if not skipped.match(line)]


def test_all_stock_experiments_are_there():
  names = [name for group in _GROUPS for name in group]
  assert len(set(names)) == 16


@pytest.mark.parametrize('group', _GROUPS, ids=lambda group: group[0])
def test_every_experiment_translates(group):
  first = _params(group[0])
  model = task_translation.translate_task(first, 'first').config.model
  for name in group[1:]:
    params = _params(name)
    assert _text(params) == _text(first)
    translated = task_translation.translate_task(params, name)
    assert translated.config.model == model


@pytest.mark.parametrize(
  'name',
  # But for a field without effect, DenseLm175B8x8Decode2D is DenseLm175B32x32.
  [
    pytest.param(
      group[0], marks=[] if group is _GROUPS[0] else pytest.mark.slow
    )
    for group in _GROUPS
    if group[0] != 'DenseLm175B8x8Decode2D'
  ],
)
def test_twenty_steps(name):
  params = _params(name)
  batches = [small_experiments.batch(params, seed) for seed in range(_STEPS)]
  run = task_parity.check(params, batches)
  for path, value in run.last.items():
    assert np.any(value != run.first[path]), path


def _first_weights_of_lingvo(params):
  """Returns new weights of a Lingvo task by theta path."""
  with small_experiments.graph_of_lingvo() as tf, tf.Session() as session:
    variables = dict(params.Instantiate().vars.FlattenItems())
    session.run(tf.global_variables_initializer())
    return session.run(variables)


@pytest.mark.parametrize(
  'params',
  [
    lambda: _params(builder=dict(softplus_scale_q=True)),
    lambda: _params(
      'DenseLm175B32x32',
      builder=dict(ff_use_bias=True, final_norm_type='pn'),
      softmax_bias=True,
    ),
  ],
)
def test_first_weights(params):
  params = params()
  theirs = _first_weights_of_lingvo(params)
  translated = task_translation.translate_task(params, 'task')
  layer = translated.config.model.Instantiate()
  batch = task_parity.nested(small_experiments.batch(params))
  weights = jax.jit(
    lambda: base_layer.unbox(
      layer.init({base_layer.PARAMS: jax.random.key(0)}, batch)
    )
  )()[base_layer.PARAMS]
  ours = translated.variables.to_lingvo(learners.by_path(weights))
  assert set(ours) == set(theirs)
  for path, want in theirs.items():
    if np.all(want == want.flat[0]):
      np.testing.assert_array_equal(ours[path], want, path)
      continue
    error = 5 / np.sqrt(want.size)
    deviation = want.std()
    np.testing.assert_allclose(ours[path].std(), deviation, error, err_msg=path)
    if want.size < 500:  # Too few to tell distributions apart.
      continue
    # A uniform distribution ends where its deviation, times the root of 3, is.
    ends = [np.abs(x).max() < 1.8 * deviation for x in (ours[path], want)]
    assert ends[0] == ends[1], path


def _batch(params, **fields):
  """Returns a batch with padding, and with labels that do not count."""
  batch = small_experiments.batch(params)
  for name in ('segment_ids', 'segment_pos', 'ids', 'labels'):
    array = batch[f'tgt.{name}'] = batch[f'tgt.{name}'].copy()
    array[1, -5:] = 0
  batch['tgt.labels'][2, :3] *= -1
  return {**batch, **{f'tgt.{k}': v for k, v in fields.items()}}


def test_the_stock_input():
  """All positions are the same: every token sees all of its example."""
  params = _params()
  ones = np.ones([4, 16], np.int32)
  names = ('ids', 'labels', 'segment_ids', 'segment_pos')
  task_parity.check_evaluation(params, {f'tgt.{n}': ones for n in names})


def test_relative_positions_in_any_order():
  params = _params(
    builder=dict(
      attention_extra_logit=None,
      atten_logit_cap=2.0,
      attention_combine_dims=False,
      softplus_scale_q=True,
      relative_attention_use_universal_1d_position=False,
      decoder_bidirectional_relative_attention=True,
      scale_input_embedding_by_dim=True,
    ),
    gated_ffn_activation='silu',
    norm_type='pn',
    norm_policy='primer_hybrid',
    label_smoothing=0.2,
    use_tgt_labels_size_as_loss_denominator=False,
  )
  batch = _batch(
    params,
    word_count=np.array([3, 4, 5, 6], np.int32),
    num_sentences=np.array([2, 1, 1, 2], np.int32),
  )
  rng = np.random.default_rng(0)
  shape = batch['tgt.ids'].shape
  batch['tgt.segment_pos'] = rng.integers(0, 30, shape).astype(np.int32)
  outputs, _ = task_parity.check_evaluation(params, batch)
  assert {'num_words', 'log_pplx_per_word'} <= set(outputs.metrics)


def test_sinusoids_and_one_head_of_keys():
  params = _params(
    builder=dict(
      attention_num_memory_heads=1,
      attention_combine_dims=False,
      atten_logit_cap=2.0,  # Lingvo caps nothing with one head.
      ff_use_bias=True,
      final_norm_type='pn',
      layer_norm_epsilon=1e-3,
      model_dim_reshape_segments=None,
    ),
    positional_embedding=True,
    sinusoid_positional_embedding=True,
    pos_emb_max_timescale=100.0,
    gated_gelu=False,
    activation='sqr_relu',
    norm_type='true_ln',
    norm_policy='primer',
    softmax_bias=True,
    softmax_logit_cap=4.0,
    logits_abs_max=3.0,
    scale_decoder_outputs=False,
    label_smoothing=0.1,
    loss_denominator=50,
    z_loss=0.0,
  )
  # With paddings, the labels do not determine the weights.
  paddings = np.zeros([4, 16], np.float32)
  paddings[1, -5:] = paddings[3, :2] = 1
  task_parity.check_evaluation(params, _batch(params, paddings=paddings))


def test_repeated_layers_without_norms_or_order():
  """Of flat batches, whose labels are distributions."""
  params = _params(
    builder=dict(
      attention_num_memory_heads=1,
      attention_combine_dims=False,
      decoder_skip_causal_mask=True,
      final_norm_type='no_ln',
      ln_no_scale=True,
      model_dim_reshape_segments=None,
      scale_input_embedding_by_dim=True,
    ),
    positional_embedding=True,
    use_repeat_layer=True,
    gated_gelu=False,
    activation='gelu',
    norm_type='ln',
  )
  batches = []
  for seed in range(3):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=[4, 16, params.vocab_size])
    soft_labels = np.asarray(jax.nn.softmax(logits), np.float32)
    batches.append(_batch(params, soft_labels=soft_labels))
  task_parity.check(params, batches)


def test_layers_that_share_their_bias_for_distances():
  params = _params(builder=dict(relative_attention_type='bias_shared'))
  outputs, _ = task_parity.check_evaluation(params, _batch(params))
  biases = [path for path in outputs.weights if path.endswith('.wrb')]
  assert len(biases) == 1 and np.any(outputs.gradients[biases[0]])


@pytest.mark.parametrize(
  ('fields', 'builder', 'message'),
  [
    ({'parallel_ffn': True}, {}, 'task.parallel_ffn .*only False'),
    ({'multi_dconv_head_att': True}, {}, 'task.multi_dconv_head_att .*False'),
    ({'is_quantize': True}, {}, 'task.is_quantize .*only False'),
    ({'has_embedding_layer': False}, {}, 'task.has_embedding_layer .*True'),
    ({'start_layer_id': 4}, {}, 'task.start_layer_id .*: 4 is not .*only 0'),
    ({'conv_kernel_size': 3}, {}, 'task.conv_kernel_size .*only None'),
    ({'norm_type': 'jax_replica_ln'}, {}, 'task.norm_type .*only ln, true_ln'),
    ({'norm_policy': 'post'}, {}, "task.norm_policy .*only 'pre' or 'primer'"),
    (
      {'gated_gelu': False, 'gated_ffn_activation': 'relu'},
      {},
      "task.gated_ffn_activation .*'relu' is not translated",
    ),
    (
      {'gated_gelu': False, 'activation': 'tanh'},
      {},
      "task.activation .*'tanh' is not translated, only relu, gelu",
    ),
    (
      {'moe': True, 'sub_layer_types': ['attn', 'ffw', 'moe']},
      {},
      'task.sub_layer_types .*is not translated',
    ),
    (
      {'use_repeat_layer': True},
      {'relative_attention_type': 'bias_shared'},
      "task.use_repeat_layer .*with relative_attention_type 'bias_shared'",
    ),
    ({}, {'relative_attention_type': None}, 'relative_attention_type .*None'),
    ({}, {'attention_num_memory_heads': 2}, 'memory_heads .*only None or 1'),
    ({}, {'use_rotary_position_emb': True}, 'use_rotary_position_emb .*False'),
    ({}, {'noise_shape_broadcast_dims': [1]}, 'noise_shape_broadcast_dims'),
    ({}, {'model_dim': 24, 'fprop_dtype': np.float16}, 'builder.fprop_dtype'),
  ],
)
def test_what_is_refused(fields, builder, message):
  params = _params(builder=builder, **fields)
  with pytest.raises(errors.UserError, match=message):
    task_translation.translate_task(params, 'task')


def test_a_builder_that_is_not_known():
  gshard = lingvo_runtime.module('lingvo.core.gshard_builder')
  params = _params(builder=())
  params.builder = gshard.MoEHashBuilder.Params()
  with pytest.raises(errors.UserError, match='it is not its parent .*DenseB'):
    task_translation.translate_task(params, 'task')


def test_dropout():
  params = _params(builder=dict(dropout_rate=0.1, attention_dropout_prob=0.2))
  lm = task_translation.translate_task(params, 'task').config.model.lm_tpl
  assert lm.input_dropout_prob == lm.output_dropout_prob == 0.1
  layer = lm.stacked_transformer_tpl.transformer_layer_params_tpl
  assert layer.residual_dropout_prob == 0.1
  assert layer.tr_atten_tpl.atten_dropout_prob == 0.2
  ffn = layer.tr_fflayer_tpl
  assert ffn.residual_dropout_prob == ffn.relu_dropout_prob == 0.1
  params.builder.skip_output_dropout = True
  lm = task_translation.translate_task(params, 'task').config.model.lm_tpl
  assert (lm.input_dropout_prob, lm.output_dropout_prob) == (0.1, 0)
