"""Convolutions and pooling against Lingvo's, run for real.

Shapes: B batch, H height (which is time), W width, I input channels, O output
channels, M channel multiplier.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import base_layer
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.layers import activations, poolings
from pax_compat.layers.convolutions import (
  conv,
  depthwise_convolutions,
  light_convolutions,
)
from pax_compat.layers.normalizations import norm_layers
from tests.adaptors.translate import lingvo_layer_runs
from tests.adaptors.translate.parity import (
  OUTPUT_TOLERANCE,
  assert_close,
  assert_gradients_close,
)

B, H, W, I, O = 3, 8, 5, 2, 4  # noqa: E741 (the letters of the legend)
LENGTHS = np.array([8, 5, 2])
PADDINGS = (np.arange(H) >= LENGTHS[:, None]).astype(np.float32)


def _inputs(*shape):
  return np.random.default_rng(1).normal(1, 2, shape).astype(np.float32)


def _compute(layer, variables, inputs, weight, do_eval=False):
  """Returns outputs, gradients by weights and input, and updates of a layer.

  Args:
    layer: the layer.
    variables: its variables.
    inputs: of its call, the first of which gets a gradient.
    weight: multiplies the first output for a loss.
    do_eval: whether the layer behaves as at evaluation.
  """
  kept = {k: v for k, v in variables.items() if k != PARAMS}

  @jax.jit
  def loss(params, x):
    outputs, updates = layer.apply(
      {PARAMS: params, **kept}, x, *inputs[1:], mutable=[NON_TRAINABLE]
    )
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return jnp.sum(weight * outputs[0]), (outputs, updates)

  with base_layer.eval_mode(do_eval):
    gradients, (outputs, updates) = jax.grad(loss, (0, 1), has_aux=True)(
      variables.get(PARAMS, {}), inputs[0]
    )
  return outputs, gradients, updates.get(NON_TRAINABLE, {})


def _mask(paddings):
  return 1 - paddings[..., None, None]


@pytest.mark.parametrize('do_eval', [False, True])
@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'filter_stride': (2, 2)},
    {'filter_stride': (3, 1), 'activation': 'NONE'},
    {'dilation_rate': (2, 1)},
    {'causal_convolution': True, 'filter_shape': (3, 1, I, O)},
    {'weight_norm': True},
  ],
)
def test_conv_bn_act(do_eval, fields):
  fields = {
    'filter_shape': (3, 3, I, O),
    'filter_stride': (1, 1),
    'activation': 'RELU',
    **fields,
  }
  params = (
    lingvo_runtime.module('lingvo.core.layers')
    .Conv2DLayer.Params()
    .Set(name='conv', **fields)
  )
  weights = lingvo_layer_runs.weights_of(params)
  inputs = [_inputs(B, H, W, I), PADDINGS]
  lingvo = lingvo_layer_runs.run(params, weights, inputs, do_eval=do_eval)
  weight_norm = {
    False: norm_layers.IdentityNorm,
    True: norm_layers.WeightNormL2,
  }[fields.get('weight_norm', False)]
  config = conv.ConvBNActWithPadding.config(
    filter_shape=fields['filter_shape'],
    filter_stride=fields['filter_stride'],
    dilations=fields.get('dilation_rate'),
    is_causal=fields.get('causal_convolution', False),
    tf_equivalent_padding=True,
    compat_with_lingvo='dilation_rate' not in fields,
    weight_norm_tpl=weight_norm.config(),
    activation_tpl={
      'RELU': activations.ReLU.config(),
      'NONE': activations.Identity.config(),
    }[fields['activation']],
  )
  ours = {path.split('.')[-1]: value for path, value in weights.items()}
  params = {'w': ours['w'], 'bn': {k: ours[k] for k in ('beta', 'gamma')}}
  if 'g' in ours:
    params['weight_norm'] = {'g': ours['g']}
  moving = {k: v for k, v in ours.items() if k.startswith('moving')}
  (y, paddings), (by_params, by_x), updates = _compute(
    config.Instantiate(),
    {PARAMS: params, NON_TRAINABLE: {'bn': moving}},
    inputs,
    lingvo_layer_runs.cotangent(lingvo.outputs[0].shape),
    do_eval,
  )
  assert_close(y, lingvo.outputs[0], OUTPUT_TOLERANCE, 'output')
  np.testing.assert_array_equal(paddings, lingvo.outputs[1])
  assert set(updates['bn']) == set(moving)
  for name, value in updates['bn'].items():
    assert_close(value, lingvo.updated[f'bn.{name}'], OUTPUT_TOLERANCE, name)
  gradients = {'inputs': by_x, 'w': by_params['w']}
  gradients |= {f'bn.{name}': g for name, g in by_params['bn'].items()}
  gradients |= by_params.get('weight_norm', {})
  assert_gradients_close(gradients, lingvo.gradients)


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'bias': True},
    {'filter_stride': (2, 1)},
    {'weight_norm': True, 'bias': True},
  ],
)
def test_conv_of_padded_time(fields):
  params = (
    lingvo_runtime.module('lingvo.core.conv_layers_with_time_padding')
    .Conv2DLayerWithPadding.Params()
    .Set(name='conv', filter_shape=(3, 3, I, O), v2_padding=True, **fields)
  )
  weights = lingvo_layer_runs.weights_of(params)
  inputs = [_inputs(B, H, W, I), PADDINGS]
  stride = fields.get('filter_stride', (1, 1))
  # Lingvo leaves it to the next layer to set padded outputs to zero.
  mask = _mask(PADDINGS[:, :: stride[0]])
  lingvo = lingvo_layer_runs.run(params, weights, inputs, mask=mask)
  config = conv.ConvBNActWithPadding.config(
    filter_shape=(3, 3, I, O),
    filter_stride=stride,
    bias=fields.get('bias', False),
    compat_with_lingvo=stride == (1, 1),
    batch_norm_tpl=None,
    activation_tpl=activations.Identity.config(),
  )
  ours = dict(weights)
  if 'g' in ours:
    config.weight_norm_tpl = norm_layers.WeightNormL2.config()
    ours['weight_norm'] = {'g': ours.pop('g')}
  (y, paddings), (by_params, by_x), _ = _compute(
    config.Instantiate(),
    {PARAMS: ours},
    inputs,
    lingvo_layer_runs.cotangent(lingvo.outputs[0].shape),
  )
  assert_close(y, lingvo.outputs[0] * mask, OUTPUT_TOLERANCE, 'output')
  np.testing.assert_array_equal(paddings, lingvo.outputs[1])
  gradients = {'inputs': by_x, **by_params}
  gradients |= gradients.pop('weight_norm', {})
  assert_gradients_close(gradients, lingvo.gradients)


@pytest.mark.parametrize('multiplier', [1, 3])
@pytest.mark.parametrize('as_2d', [False, True])
@pytest.mark.parametrize(
  ('name', 'is_causal', 'dilation'),
  [
    ('DepthwiseConv2DLayer', False, 1),
    ('DepthwiseConv2DLayer', False, 2),
    ('CausalDepthwiseConv2DLayer', True, 1),
    ('CausalDepthwiseConv2DLayer', True, 3),
  ],
)
def test_depthwise_conv(multiplier, as_2d, name, is_causal, dilation):
  layers = lingvo_runtime.module('lingvo.core.conv_layers_with_time_padding')
  params = (
    getattr(layers, name)
    .Params()
    .Set(
      name='conv',
      filter_shape=(3, 1, I, multiplier),
      dilation_rate=(dilation, 1),
      bias=True,
    )
  )
  weights = lingvo_layer_runs.weights_of(params)
  x = _inputs(B, H, I)
  lingvo = lingvo_layer_runs.run(params, weights, [x[:, :, None], PADDINGS])
  config = depthwise_convolutions.DepthwiseConv1D.config(
    filter_shape=(3, I, multiplier),
    rhs_dilation_rate=dilation,
    is_causal=is_causal,
    bias=True,
    use_2d_conv_weight_shape=as_2d,
  )
  shape = [3, 1, I * multiplier, *([1] if as_2d else [])]
  (y,), (by_params, by_x), _ = _compute(
    config.Instantiate(),
    {PARAMS: {**weights, 'w': weights['w'].reshape(shape)}},
    [x, PADDINGS],
    lingvo_layer_runs.cotangent(lingvo.outputs[0].shape)[:, :, 0],
  )
  assert_close(y, lingvo.outputs[0][:, :, 0], OUTPUT_TOLERANCE, 'output')
  gradients = {
    'inputs': by_x[:, :, None],
    'w': by_params['w'].reshape(weights['w'].shape),
    'b': by_params['b'],
  }
  assert_gradients_close(gradients, lingvo.gradients)


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize(
  ('window', 'stride', 'padding'),
  [
    ((2, 2), (2, 2), 'SAME'),
    ((3, 2), (2, 1), 'SAME'),
    ((2, 3), (2, 2), 'VALID'),
  ],
)
def test_pooling(kind, padded, window, stride, padding):
  params = (
    lingvo_runtime.module('lingvo.core.layers')
    .PoolingLayer.Params()
    .Set(
      name='pool',
      window_shape=window,
      window_stride=stride,
      pooling_type=kind,
      padding_algorithm=padding,
    )
  )
  inputs = [_inputs(B, H, W, I), *([PADDINGS] if padded else [])]
  lingvo = lingvo_layer_runs.run(params, {}, inputs)
  config = poolings.Pooling.config(
    window_shape=window,
    window_stride=stride,
    pooling_type=kind,
    padding=padding,
  )
  (y, paddings), (_, by_x), _ = _compute(
    config.Instantiate(),
    {},
    inputs,
    lingvo_layer_runs.cotangent(lingvo.outputs[0].shape),
  )
  assert_close(y, lingvo.outputs[0], OUTPUT_TOLERANCE, 'output')
  if padded:
    np.testing.assert_array_equal(paddings, lingvo.outputs[1])
  assert_gradients_close({'inputs': by_x}, lingvo.gradients)


@pytest.mark.parametrize('kind', ['MAX', 'AVG'])
def test_global_pooling(kind):
  params = (
    lingvo_runtime.module('lingvo.core.conv_layers_with_time_padding')
    .GlobalPoolingLayer.Params()
    .Set(name='pool', pooling_type=kind)
  )
  paddings = PADDINGS.copy()
  paddings[2] = 1  # nothing is left of the last example
  x = _inputs(B, H, W, I)
  lingvo = lingvo_layer_runs.run(params, {}, [x, paddings])
  config = poolings.GlobalPooling.config(
    pooling_type=kind, pooling_dims=[1, 2], keepdims=True
  )
  y = config.Instantiate().apply(
    {}, x, compatible_paddings=paddings[..., None, None]
  )
  assert_close(y, lingvo.outputs[0], OUTPUT_TOLERANCE, 'output')


@pytest.mark.parametrize('is_causal', [False, True])
@pytest.mark.parametrize('do_eval', [False, True])
def test_light_conv(is_causal, do_eval):
  dims = 6
  params = (
    lingvo_runtime.module('lingvo.core.conformer_layer')
    .LConvLayer.CommonParams(input_dim=dims, kernel_size=3, is_causal=is_causal)
    .Set(name='lconv', split_act_gated_linear_start=True)
  )
  weights = lingvo_layer_runs.weights_of(params)
  inputs = [_inputs(B, H, dims), PADDINGS]
  lingvo = lingvo_layer_runs.run(params, weights, inputs, do_eval=do_eval)

  def linear(name):
    return {
      'linear': {'w': weights[f'{name}.w']},
      'bias': {'b': weights[f'{name}.b']},
    }

  ours = {
    name: linear(name)
    for name in ('linear_start_act', 'linear_start_gated', 'linear_end')
  }
  ours['ln'] = {k: weights[f'ln.{k}'] for k in ('scale', 'bias')}
  ours['conv_norm'] = {k: weights[f'norm.{k}'] for k in ('beta', 'gamma')}
  ours['depthwise_conv1d'] = {'w': weights['depthwise_conv1d.w']}
  moving = {k: weights[f'norm.{k}'] for k in ('moving_mean', 'moving_variance')}
  config = light_convolutions.LightConv1D.config(
    input_dims=dims, kernel_size=3, is_causal=is_causal
  )
  config.depthwise_conv_tpl.use_2d_conv_weight_shape = True
  (y,), (by_params, by_x), updates = _compute(
    config.Instantiate(),
    {PARAMS: ours, NON_TRAINABLE: {'conv_norm': moving}},
    inputs,
    lingvo_layer_runs.cotangent(lingvo.outputs[0].shape),
    do_eval,
  )
  assert_close(y, lingvo.outputs[0], OUTPUT_TOLERANCE, 'output')
  for name, value in updates['conv_norm'].items():
    assert_close(value, lingvo.updated[f'norm.{name}'], OUTPUT_TOLERANCE, name)
  gradients = {'inputs': by_x}
  for name in ('linear_start_act', 'linear_start_gated', 'linear_end'):
    gradients[f'{name}.w'] = by_params[name]['linear']['w']
    gradients[f'{name}.b'] = by_params[name]['bias']['b']
  for name, theirs in (
    ('ln', 'ln'),
    ('conv_norm', 'norm'),
    ('depthwise_conv1d', 'depthwise_conv1d'),
  ):
    gradients |= {f'{theirs}.{k}': g for k, g in by_params[name].items()}
  assert_gradients_close(gradients, lingvo.gradients)
