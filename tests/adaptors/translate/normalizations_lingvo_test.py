"""Normalisations against Lingvo's, run for real, while they train and not.

Shapes: B batch, T time, W width, D features.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate.variables import Variable, VariableMap
from pax_compat import base_layer
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.layers.normalizations import norm_layers
from tests.adaptors.translate import lingvo_layer_runs
from tests.adaptors.translate.parity import (
  OUTPUT_TOLERANCE,
  assert_close,
  assert_gradients_close,
  check_pair,
)

B, T, W, D = 3, 6, 4, 8
VALID = np.arange(T) < np.array([[6], [4], [1]])
PADDINGS = (1 - VALID).astype(np.float32)


def _inputs(*shape):
  return np.random.default_rng(1).normal(2, 3, shape).astype(np.float32)


def _check(layer, weights, lingvo, inputs, do_eval, mask):
  """Holds a layer's output, gradients and updates against a Lingvo run.

  Args:
    layer: the layer, whose weights have Lingvo's names.
    weights: what Lingvo's variables held, by name.
    lingvo: the run.
    inputs: the layer's.
    do_eval: whether it behaves as at evaluation.
    mask: 1 where outputs are compared.
  """
  moving = {k: v for k, v in weights.items() if k.startswith('moving_')}
  params = {k: v for k, v in weights.items() if k not in moving}
  weight = mask * lingvo_layer_runs.cotangent(lingvo.outputs[0].shape)

  @jax.jit
  def loss(params, x):
    y, updates = layer.apply(
      {PARAMS: params, NON_TRAINABLE: moving},
      x,
      *inputs[1:],
      mutable=[NON_TRAINABLE],
    )
    return jnp.sum(weight * y), (y, updates.get(NON_TRAINABLE, {}))

  with base_layer.eval_mode(do_eval):
    (by_params, by_x), (y, updated) = jax.grad(loss, (0, 1), has_aux=True)(
      params, inputs[0]
    )
  assert_close(y * mask, lingvo.outputs[0] * mask, OUTPUT_TOLERANCE, 'output')
  assert set(updated) == set(moving)
  for name, value in updated.items():
    assert_close(value, lingvo.updated[name], OUTPUT_TOLERANCE, name)
  assert_gradients_close({**by_params, 'inputs': by_x}, lingvo.gradients)


@pytest.mark.parametrize('do_eval', [False, True])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize(
  'fields', [{}, {'use_moving_avg_in_training': True}, {'decay': 0.5}]
)
def test_batch_norm(do_eval, padded, fields):
  params = (
    lingvo_runtime.module('lingvo.core.bn_layers')
    .BatchNormLayer.Params()
    .Set(name='bn', dim=D, add_stats_to_moving_average_variables=True, **fields)
  )
  weights = lingvo_layer_runs.weights_of(params)
  inputs = [_inputs(B, T, D), *([PADDINGS] if padded else [])]
  lingvo = lingvo_layer_runs.run(params, weights, inputs, do_eval=do_eval)
  layer = norm_layers.BatchNorm.config(dim=D, **fields).Instantiate()
  mask = np.ones_like(lingvo.outputs[0])
  _check(layer, weights, lingvo, inputs, do_eval, mask)


@pytest.mark.parametrize('shape', [(B, T, D), (B, T, W, D)])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize(
  'fields',
  [
    {'num_groups': 2},
    {'num_groups': 32, 'min_group_size': 4},
    {'num_groups': 4, 'epsilon': 0.1},
    {'num_groups': 2, 'cumulative': True},
  ],
)
def test_group_norm(shape, padded, fields):
  rank = len(shape)
  params = (
    lingvo_runtime.module('lingvo.core.bn_layers')
    .GroupNormLayer.Params()
    .Set(name='gn', dim=D, input_rank=rank, **fields)
  )
  # Lingvo's cumulative statistics take paddings.
  cumulative = fields.get('cumulative', False)
  paddings = PADDINGS if padded else np.zeros_like(PADDINGS)
  inputs = [_inputs(*shape), *([paddings] if padded or cumulative else [])]
  weights = lingvo_layer_runs.weights_of(params)
  mask = (1 - paddings).reshape(B, T, *[1] * (rank - 2))
  lingvo = lingvo_layer_runs.run(params, weights, inputs, mask=mask)
  layer = norm_layers.GroupNorm.config(dim=D, input_rank=rank, **fields)
  inputs = inputs if padded else inputs[:1]
  _check(layer.Instantiate(), weights, lingvo, inputs, False, mask)


@pytest.mark.parametrize('epsilon', [1e-6, 0.1])
def test_rms_norm(epsilon):
  """The normalisation of GShard's transformers."""
  builder = (
    lingvo_runtime.module('lingvo.core.gshard_builder')
    .MoEBuilder.Params()
    .Set(model_dim=D, layer_norm_epsilon=epsilon)
  )
  with lingvo_runtime.cluster():
    params = builder.Instantiate()._LN('ln')
  check_pair(
    params,
    norm_layers.RmsNorm.config(dim=D, epsilon=epsilon),
    VariableMap([Variable(('w.scale',), 'scale')]),
    [_inputs(B, T, D)],
    fprop=lambda layer, theta, x: layer.FProp(theta, x),
    call=lambda layer, x: layer(x),
  )
