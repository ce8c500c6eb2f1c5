"""The causal depthwise convolution against Lingvo's, run for real.

Shapes: B batch, T time, N heads, H dims of a head, K kernel size.
"""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import Variable, VariableMap
from pax_compat.base_layer import PARAMS
from pax_compat.layers.convolutions import depthwise_convolutions
from tests.adaptors.translate.parity import assert_close, check_pair

B, T, N, H = 2, 7, 3, 4


@pytest.mark.parametrize('kernel_size', [1, 3])
@pytest.mark.parametrize('dims', [[H], [N, H]])
def test_causal_convolution(kernel_size, dims):
  gshard = lingvo_runtime.module('lingvo.core.gshard_layers')
  params = gshard.CausalDepthwiseConv1DLayer.Params().Set(
    name='conv',
    kernel_size=kernel_size,
    model_dims=dims,
    compatible_with_mtf_ckpt=True,
  )
  config = depthwise_convolutions.CausalDepthwiseConv1D.config(
    kernel_size=kernel_size, hidden_dims=dims
  )
  x = np.random.default_rng(1).normal(size=(B, T, *dims)).astype(np.float32)
  check_pair(
    params,
    config,
    VariableMap(
      Variable((f'w_{i}.scale',), f'dconv_{i}') for i in range(kernel_size)
    ),
    [x],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )
  with lingvo_runtime.cluster():
    first = dict(params.Instantiate().vars.FlattenItems())
  weights = config.Instantiate().init_boxed(jax.random.key(0), x)[PARAMS]
  for i in range(kernel_size):
    assert_close(
      weights[f'dconv_{i}'].value, first[f'w_{i}.scale'].numpy(), 1e-6, f'w_{i}'
    )
