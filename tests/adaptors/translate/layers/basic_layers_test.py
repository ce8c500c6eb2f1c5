"""Each translated layer against the Lingvo layer that it stands for.

Legend: B batch, T time, D model dims.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from tests.adaptors.translate.parity import check_layer, translate

B, T, D = 3, 7, 8


@pytest.fixture(scope='module')
def lingvo():
  """The modules of Lingvo that the tests take layers from."""

  class Modules:
    layers = lingvo_runtime.module('lingvo.core.layers')
    with_attention = lingvo_runtime.module('lingvo.core.layers_with_attention')
    attention = lingvo_runtime.module('lingvo.core.attention')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  return Modules


def _inputs(*shape):
  return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def _paddings():
  """Returns paddings [B, T] of rows of full, middle and short length."""
  lengths = np.array([T, 4, 1])
  return (np.arange(T) >= lengths[:, None]).astype(np.float32)


def _time_major(fprop):
  """Wraps a time-major Lingvo computation of inputs [B, T, D]."""
  tf = lingvo_runtime.module('tensorflow')

  def wrapped(layer, theta, inputs, paddings):
    outputs = fprop(
      layer, theta, tf.transpose(inputs, [1, 0, 2]), tf.transpose(paddings)
    )
    return tf.transpose(outputs, [1, 0, 2])

  return wrapped


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'direct_scale': True},
    {'bias': False},
    {'epsilon': 0.1},
    {'use_fused_layernorm': True},
    {'use_defun': False},
  ],
)
def test_layer_norm(lingvo, fields):
  params = lingvo.layers.LayerNorm.Params().Set(
    name='ln', input_dim=D, **fields
  )
  check_layer(
    params,
    [_inputs(B, T, D)],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )


@pytest.mark.parametrize(
  'activation', ['RELU', 'NONE', 'GELU', 'GELU_APPROXIMATE', 'TANH', 'SWISH']
)
@pytest.mark.parametrize('has_bias', [True, False])
def test_projection(lingvo, activation, has_bias):
  params = lingvo.layers.ProjectionLayer.Params().Set(
    name='proj',
    input_dim=D,
    output_dim=5,
    batch_norm=False,
    has_bias=has_bias,
    activation=activation,
  )
  check_layer(
    params,
    [_inputs(B, T, D)],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )


@pytest.mark.parametrize('scale', [True, False])
def test_embedding(lingvo, scale):
  params = lingvo.layers.EmbeddingLayer.Params().Set(
    name='emb',
    vocab_size=11,
    embedding_dim=D,
    max_num_shards=4,
    scale_sqrt_depth=scale,
  )
  ids = np.random.default_rng(2).integers(0, 11, [B, T]).astype(np.int32)
  check_layer(
    params,
    [ids],
    fprop=lambda layer, theta, x: layer.EmbLookup(theta, x),
    call=lambda layer, x: layer(x),
  )


@pytest.mark.parametrize('dims,timescale', [(D, 10_000), (6, 100)])
def test_positional_embedding(lingvo, dims, timescale):
  params = lingvo.layers.PositionalEmbeddingLayer.Params().Set(
    name='pos', embedding_dim=dims, max_timescale=timescale
  )
  check_layer(
    params,
    [],
    fprop=lambda layer, theta: layer.FProp(theta, 50),
    call=lambda layer: layer(50)[0],
  )


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'num_shards': 3},
    {'use_bias': False},
    {'logits_soft_max': 2.0},
    {'logits_abs_max': 1.0},
    {'chunk_size': 5},
  ],
)
@pytest.mark.parametrize('output', ['avg_xent', 'logits', 'per_example_xent'])
def test_full_softmax(lingvo, fields, output):
  params = lingvo.layers.SimpleFullSoftmax.Params().Set(
    name='softmax', input_dim=D, num_classes=12, **fields
  )
  ids = np.random.default_rng(3).integers(0, 12, [B, T]).astype(np.int32)
  weights = 1.0 - _paddings()
  check_layer(
    params,
    [_inputs(B, T, D)],
    fprop=lambda layer, theta, x: layer.FProp(
      theta, x, class_weights=weights, class_ids=ids
    )[output],
    call=lambda layer, x: layer(x, class_weights=weights, class_ids=ids)[
      output
    ],
  )


def test_full_softmax_argmax_and_sums(lingvo):
  """What has no gradient is compared as it is."""
  params = lingvo.layers.SimpleFullSoftmax.Params().Set(
    name='softmax', input_dim=D, num_classes=12
  )
  layer = translate(params).config.Instantiate()
  weights = {
    'logits_ffn': {
      'linear': {'w': _inputs(D, 12)},
      'bias': {'b': _inputs(12)},
    }
  }
  inputs, paddings = _inputs(B, T, D), _paddings()
  ids = np.zeros([B, T], np.int32)
  ours = layer.apply(
    {'params': weights}, inputs, class_weights=1 - paddings, class_ids=ids
  )
  with lingvo_runtime.cluster(do_eval=True):
    real = params.Instantiate()
    real.vars.weight_0.assign(weights['logits_ffn']['linear']['w'])
    real.vars.bias_0.assign(weights['logits_ffn']['bias']['b'])
    theirs = real.FProp(
      real.theta,
      lingvo_runtime.module('tensorflow').constant(inputs),
      class_weights=1 - paddings,
      class_ids=ids,
    )
  np.testing.assert_array_equal(
    ours.per_example_argmax, theirs.per_example_argmax.numpy()
  )
  np.testing.assert_allclose(ours.total_xent, theirs.total_xent, rtol=1e-5)
  np.testing.assert_allclose(ours.total_weight, theirs.total_weight)


def _atten_params(lingvo, **fields):
  params = lingvo.with_attention.TransformerAttentionLayer.Params().Set(
    name='atten', source_dim=D, num_attention_heads=2, is_masked=True, **fields
  )
  params.atten_tpl.Set(enable_ctx_pre_proj=True, enable_ctx_post_proj=True)
  return params


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'is_masked': False},
    {'add_unnormalized_input': True},
    {'pre_layer_norm': False},
    {'atten_hidden_dim': 12},
  ],
)
@pytest.mark.parametrize(
  'atten',
  [
    {},
    {'enable_per_dim_scale': False},
    {'use_bias': False},
  ],
)
def test_transformer_attention(lingvo, fields, atten):
  params = _atten_params(lingvo).Set(**fields)
  params.atten_tpl.Set(**atten)
  check_layer(
    params,
    [_inputs(B, T, D), _paddings()],
    fprop=_time_major(lambda layer, theta, x, p: layer.FProp(theta, x, p)[0]),
    call=lambda layer, x, p: layer(x, p),
  )


def test_transformer_attention_with_capped_logits(lingvo):
  params = _atten_params(lingvo)
  params.atten_tpl.inner_atten_params.atten_logit_cap = 0.5
  check_layer(
    params,
    [_inputs(B, T, D), _paddings()],
    fprop=_time_major(lambda layer, theta, x, p: layer.FProp(theta, x, p)[0]),
    call=lambda layer, x, p: layer(x, p),
  )


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'activation': 'GELU'},
    {'residual_weight': 0.5},
    {'pre_layer_norm': False},
  ],
)
def test_transformer_feed_forward(lingvo, fields):
  params = lingvo.with_attention.TransformerFeedForwardLayer.Params().Set(
    name='ff', input_dim=D, hidden_dim=16, **fields
  )
  check_layer(
    params,
    [_inputs(B, T, D), _paddings()],
    fprop=_time_major(lambda layer, theta, x, p: layer.FProp(theta, x, p)),
    call=lambda layer, x, p: layer(x, p),
  )


@pytest.mark.parametrize('post_norm', [False, True])
@pytest.mark.parametrize('do_eval', [False, True])
def test_transformer_layer(lingvo, post_norm, do_eval):
  params = lingvo.with_attention.TransformerLayer.Params().Set(
    name='layer', source_dim=D, mask_self_atten=True
  )
  params.tr_atten_tpl.num_attention_heads = 4
  params.tr_atten_tpl.atten_tpl.Set(
    enable_ctx_pre_proj=True, enable_ctx_post_proj=True
  )
  params.tr_fflayer_tpl.hidden_dim = 16
  if post_norm:
    params.tr_post_ln_tpl = lingvo.layers.LayerNorm.Params()
  check_layer(
    params,
    [_inputs(B, T, D), _paddings()],
    fprop=_time_major(lambda layer, theta, x, p: layer.FProp(theta, x, p)[0]),
    call=lambda layer, x, p: layer(x, p),
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  'method',
  [
    'Gaussian',
    'Uniform',
    'Xavier',
    'GeoMeanXavier',
    'Constant',
    'TruncatedGaussian',
    'GaussianSqrtDim',
    'GaussianSqrtFanIn',
    'GaussianSqrtFanOut',
    'GaussianSqrtFanAvg',
    'UniformSqrtDim',
    'UniformUnitScaling',
    'TruncatedGaussianSqrtDim',
    'TruncatedGaussianSqrtFanIn',
    'TruncatedGaussianSqrtFanOut',
  ],
)
def test_first_weights_have_lingvos_distribution(lingvo, method):
  """Moments and bounds of many draws from both."""
  import jax

  init = getattr(lingvo.py_utils.WeightInit, method)(0.7)
  params = lingvo.layers.ProjectionLayer.Params().Set(
    name='proj',
    input_dim=400,
    output_dim=300,
    batch_norm=False,
    params_init=init,
  )
  layer = translate(params).config.Instantiate()
  ours = np.asarray(
    layer.init_boxed({'params': jax.random.key(0)}, np.zeros([1, 400]))[
      'params'
    ]['linear']['w'].value
  )
  with lingvo_runtime.cluster():
    theirs = params.Instantiate().vars.w.numpy()
  deviation = theirs.std()
  assert abs(ours.mean() - theirs.mean()) <= 0.02 * deviation
  np.testing.assert_allclose(ours.std(), deviation, rtol=0.01)
  np.testing.assert_allclose(
    np.abs(ours).max(), np.abs(theirs).max(), rtol=0.25
  )
