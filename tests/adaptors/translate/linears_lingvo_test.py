"""Linear and feed-forward layers against Lingvo's, run for real.

Shapes: B batch, T time, D input dims, H hidden dims, O output dims.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import Variable, VariableMap
from pax_compat.layers import activations, linears
from tests.adaptors.translate.parity import assert_close, check_pair

B, T, D, H, O = 3, 7, 4, 6, 5  # noqa: E741 (the letters of the legend)


@pytest.fixture(scope='module')
def layers():
  return lingvo_runtime.module('lingvo.core.layers')


def _inputs(*shape):
  return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def _check(params, config, variables, *inputs):
  check_pair(
    params,
    config,
    VariableMap(Variable((theirs,), ours) for theirs, ours in variables),
    inputs,
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )


@pytest.mark.parametrize('shape', [(B, D), (B, T, D)])
def test_linear_and_bias(shape):
  builder = lingvo_runtime.module('lingvo.core.builder_layers')
  linear = builder.LinearLayer.Params().Set(
    name='linear', input_dims=D, output_dims=O
  )
  config = linears.Linear.config(input_dims=D, output_dims=O)
  _check(linear, config, [('w', 'w')], _inputs(*shape))
  bias = builder.BiasLayer.Params().Set(name='bias', dims=D)
  config = linears.Bias.config(dims=D)
  _check(bias, config, [('b', 'b')], _inputs(*shape))


def test_feed_forward(layers):
  _check(
    layers.FCLayer.Params().Set(
      name='fc', input_dim=D, output_dim=O, activation='TANH'
    ),
    linears.FeedForward.config(
      input_dims=D, output_dims=O, activation_tpl=activations.Tanh.config()
    ),
    [('w', 'linear/w'), ('b', 'bias/b')],
    _inputs(B, T, D),
  )


@pytest.mark.parametrize('activate_final', [False, True])
@pytest.mark.parametrize('has_bias', [False, True])
def test_mlp(layers, activate_final, has_bias):
  params = layers.FeedForwardNet.Params().Set(
    name='net',
    input_dim=D,
    hidden_layer_dims=[H, H, O],
    activation=['SWISH', 'SWISH', 'SWISH' if activate_final else 'NONE'],
    has_bias=has_bias,
  )
  config = linears.MLPBlock.config(
    num_layers=3,
    hidden_dims=H,
    activate_final=activate_final,
    ff_tpl=linears.FeedForward.config(
      input_dims=D,
      output_dims=O,
      has_bias=has_bias,
      activation_tpl=activations.Swish.config(),
    ),
  )
  names = [('w', 'linear/w'), ('b', 'bias/b')][: 1 + has_bias]
  _check(
    params,
    config,
    [
      (f'fc[{i}].{theirs}', f'mlp_layers_{i}/{ours}')
      for i in range(3)
      for theirs, ours in names
    ],
    _inputs(B, T, D),
  )


@pytest.mark.parametrize(
  'fields',
  [
    {'stride': 2},
    {'left_context': 1, 'right_context': 1, 'stride': 3},
    {'left_context': 2, 'stride': 2, 'padding_reduce_option': 'reduce_max'},
    {'left_context': 2, 'stride': 1, 'pad_with_left_frame': True},
    {'right_context': 2, 'stride': 3, 'pad_with_right_frame': True},
  ],
)
def test_stacking_over_time(layers, fields):
  paddings = np.arange(T) >= np.array([[T], [4], [1]])
  params = layers.StackingOverTime.Params().Set(name='stack', **fields)
  check_pair(
    params,
    linears.StackingOverTime.config(**fields),
    VariableMap([]),
    [_inputs(B, T, D), paddings[..., None].astype(np.float32)],
    fprop=lambda layer, theta, *x: dict(
      zip(('stacked', 'paddings'), layer.FProp(*x), strict=True)
    ),
    call=lambda layer, *x: dict(
      zip(('stacked', 'paddings'), layer(*x), strict=True)
    ),
  )


@pytest.mark.parametrize(
  'fields',
  [
    {'left_context': 1, 'right_context': 1, 'stride': 3},
    {'left_context': 2, 'right_context': 1, 'stride': 4},
    {'right_context': 3, 'stride': 2},
  ],
)
def test_unstacking(layers, fields):
  with lingvo_runtime.cluster():
    theirs = layers.StackingOverTime.Params().Set(name='stack', **fields)
    theirs = theirs.Instantiate()
    stacked, _ = theirs.FProp(_inputs(B, T, D))
    want = theirs.Unstack(stacked).numpy()
  ours = linears.StackingOverTime.config(**fields).Instantiate()
  assert_close(ours.bind({}).unstack(stacked.numpy()), want, 0, 'unstacked')
