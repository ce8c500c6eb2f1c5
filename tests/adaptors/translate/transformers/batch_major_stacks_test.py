"""Translated stacks of batch-major layers against Lingvo's, run for real.

Shapes: B batch, T time, S source time, D model dims, N heads.
"""

import flax.linen as nn
import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import learners
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)
from tests.adaptors.translate.parity import check_layer, issues_of, translate

B, T, S, D, N = 2, 5, 4, 8, 2
RNG = np.random.default_rng(1)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
SOURCE = RNG.normal(size=(B, S, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [3]])).astype(np.float32)
SOURCE_PADDINGS = (np.arange(S) >= np.array([[2], [S]])).astype(np.float32)
# Packed examples; 0 is padding.
SEGMENT_IDS = np.array([[1, 1, 2, 2, 2], [1, 2, 2, 0, 0]], np.int32)


@pytest.fixture(scope='module')
def lingvo():
  """Lingvo's module of batch-major attention."""
  return lingvo_runtime.module('lingvo.core.batch_major_attention')


def _stack(lingvo, **fields):
  return lingvo.StackedTransformerLayers.Params().Set(
    name='stack',
    **{
      **dict(num_layers=2, mdl_dim=D, hidden_dim=12, num_atten_heads=N),
      **fields,
    },
  )


def _repeated(lingvo, body, **fields):
  return lingvo.RepeatedTransformerLayer.Params().Set(
    name='repeated', body=body.Set(name='body'), repeat=3, **fields
  )


def _check(params, do_eval=True):
  """Compares a stack that is given its paddings only."""
  check_layer(
    params,
    [X, PADDINGS],
    fprop=lambda layer, theta, x, paddings: layer.FProp(theta, x, paddings)[0],
    call=lambda layer, x, paddings: layer(x, paddings),
    do_eval=do_eval,
  )


def _check_packed(lingvo, params):
  """Compares a stack whose examples are packed."""
  tf = lingvo_runtime.module('tensorflow')

  def fprop(layer, theta, x, paddings):
    mask = lingvo.CausalSegmentMask(SEGMENT_IDS, tf.float32)
    return layer.FProp(theta, x, paddings, segment_mask=mask)[0]

  check_layer(
    params,
    [X, PADDINGS],
    fprop=fprop,
    call=lambda layer, x, paddings: layer(x, paddings, segment_ids=SEGMENT_IDS),
    do_eval=False,
  )


def _templates(lingvo):
  """Returns two kinds of layers."""
  one, other = (lingvo.TransformerLayer.Params() for _ in range(2))
  other.tr_atten_tpl.pre_layer_norm = False
  other.tr_fflayer_tpl.activation = 'GELU'
  return [one, other]


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'mask_self_atten': True, 'final_layer_norm': True},
    {'add_unnormalized_input': False, 'dropout_prob': 0.2, 'splits': [0, 1]},
    {'stochastic_depth_droppath_prob': 0.3},
  ],
  ids=','.join,
)
def test_stack(lingvo, fields):
  _check(_stack(lingvo, **fields), do_eval='mask_self_atten' not in fields)


def test_stack_of_several_kinds_of_layers(lingvo):
  params = _stack(
    lingvo, num_layers=4, transformer_layer_params_tpl=_templates(lingvo)
  )
  _check(params)


def test_layers_drop_more_and_more(lingvo):
  """As Lingvo: nothing in the first layer, all of it in the last."""
  params = _stack(lingvo, num_layers=3, stochastic_depth_droppath_prob=0.3)
  layers = translate(params).config.transformer_layer_params_tpl
  for i, layer in enumerate(layers):
    for part in (layer, layer.tr_fflayer_tpl):
      np.testing.assert_allclose(part.residual_droppath_prob, 0.15 * i)


def test_stack_of_packed_examples(lingvo):
  _check_packed(lingvo, _stack(lingvo, packed_input=True, mask_self_atten=True))


def test_stack_that_attends_to_another_sequence(lingvo):
  check_layer(
    _stack(lingvo, has_aux_atten=True, mask_self_atten=True),
    [X, SOURCE],
    fprop=lambda layer, theta, x, source: layer.FProp(
      theta, x, PADDINGS, source, SOURCE_PADDINGS
    )[0],
    call=lambda layer, x, source: layer(
      x, PADDINGS, cross_inputs=source, cross_paddings=SOURCE_PADDINGS
    ),
  )


def test_stack_decodes_what_it_computes(lingvo):
  """The final normalisation is there in steps of decoding too."""
  params = _stack(lingvo, mask_self_atten=True, final_layer_norm=True)
  layer = translate(params).config.Instantiate()
  weights = jax.jit(layer.init)(jax.random.key(0), X)
  whole = layer.apply(weights, X)
  _, state = layer.apply(
    weights, B, T, method='init_states', mutable=['decoder_cache']
  )
  for t in range(T):
    step, state = layer.apply(
      {**weights, **state},
      X[:, t : t + 1],
      time_step=t,
      method='extend_step',
      mutable=['decoder_cache'],
    )
    np.testing.assert_allclose(step[:, 0], whole[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(('apart', 'one_step'), [(False, True), (True, False)])
def test_repeated_layer(lingvo, apart, one_step):
  body = lingvo.TransformerLayer.Params().Set(
    input_dim=D, num_heads=N, mask_self_atten=True
  )
  body.tr_fflayer_tpl.hidden_dim = 12
  body.tr_atten_tpl.atten_tpl.enable_qkv_proj_in_onestep = one_step
  _check(_repeated(lingvo, body, per_layer_vars=apart))


def test_repeated_stack_of_packed_examples(lingvo):
  body = _stack(
    lingvo, packed_input=True, mask_self_atten=True, final_layer_norm=True
  )
  _check_packed(lingvo, _repeated(lingvo, body))


def test_repeated_variables_go_back_and_forth(lingvo):
  body = _stack(lingvo)
  body.transformer_layer_params_tpl.tr_atten_tpl.atten_tpl.Set(
    enable_qkv_proj_in_onestep=True
  )
  translated = translate(_repeated(lingvo, body, per_layer_vars=True))
  shapes = jax.eval_shape(
    translated.config.Instantiate().init, {'params': jax.random.key(0)}, X
  )
  params = {
    path: RNG.normal(size=leaf.shape)
    for path, leaf in learners.by_path(nn.unbox(shapes)['params']).items()
  }
  back = translated.variables.to_jax(translated.variables.to_lingvo(params))
  back = learners.by_path(back)
  assert set(back) == set(params)
  for path, value in params.items():
    np.testing.assert_array_equal(back[path], value, err_msg=path)


def _pipelined(lingvo, **fields):
  return lingvo.PipelinedTransformerLayers.Params().Set(
    name='pipelined',
    pipeline_stage=_stack(lingvo, num_layers=1, mask_self_atten=True),
    num_pipeline_stages=2,
    final_layer_norm=True,
    **fields,
  )


def test_pipelined_stack(lingvo):
  _check(_pipelined(lingvo, num_pipeline_microbatches=2))


def test_pipelined_stack_with_a_norm_in_each_stage(lingvo):
  translated = translate(
    _pipelined(lingvo, pipeline_microbatch_size=1, final_ln_at_each_stage=True)
  )
  assert translated.config.pipeline_microbatch_size == 1
  assert translated.config.output_norm_tpl is None
  paths = {v.theta: v.jax for v in translated.variables}
  path = 'pipeline/body/output_norm/scale'
  assert paths[('pipeline.body.final_ln.scale',)] == path


@pytest.mark.parametrize('repeats', [None, 3])
def test_first_weights_have_lingvos_distribution(lingvo, repeats):
  """Moments and bounds of each weight, of three dimensions and repeated too."""
  params = _stack(lingvo, mdl_dim=64, num_atten_heads=4, hidden_dim=96)
  params.transformer_layer_params_tpl.tr_atten_tpl.atten_tpl.Set(
    enable_qkv_proj_in_onestep=bool(repeats)
  )
  if repeats:
    params = _repeated(lingvo, params)
  translated = translate(params)
  layer = translated.config.Instantiate()
  first = jax.jit(layer.init)(jax.random.key(0), X[:, :, :1].repeat(64, 2))
  first = {
    path: np.asarray(value)
    for path, value in learners.by_path(nn.unbox(first)['params']).items()
  }
  ours = translated.variables.to_lingvo(first)
  with lingvo_runtime.cluster():
    theirs = dict(params.Instantiate().vars.FlattenItems())
  for path, variable in theirs.items():
    value = variable.numpy()
    np.testing.assert_allclose(
      ours[path].std(), value.std(), rtol=0.05, err_msg=path
    )
    np.testing.assert_allclose(
      np.abs(ours[path]).max(), np.abs(value).max(), rtol=0.02, err_msg=path
    )


@pytest.mark.parametrize(
  ('field', 'value'),
  [('funnel_pool_strides', [2, 1]), ('num_layers', 0)],
)
def test_refuses_other_stacks(lingvo, field, value):
  issues = issues_of(_stack(lingvo).Set(**{field: value}))
  assert f'layer.{field}' in issues[0]


def test_refuses_first_weights_that_go_by_the_repeats(lingvo):
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  body = _stack(lingvo)
  body.transformer_layer_params_tpl.tr_atten_tpl.params_init = (
    py_utils.WeightInit.GaussianSqrtFanIn()
  )
  (issue,) = issues_of(_repeated(lingvo, body))
  assert 'gaussian_sqrt_fanin' in issue


def test_alike_layers_share_a_template(lingvo):
  config = translate(_stack(lingvo, num_layers=3)).config
  assert config.cls is StackedTransformer
  assert not isinstance(config.transformer_layer_params_tpl, list)
