"""Random layers against Lingvo's, run for real.

The generators differ, so what is drawn does; what can be drawn must not.

Shapes: B batch, T time, D features.
"""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import base_layer
from pax_compat.layers import stochastics
from tests.adaptors.translate import lingvo_layer_runs

B, T, D = 60, 5, 7
RNG = np.random.default_rng(1)
X, RESIDUAL = RNG.uniform(1, 2, (2, B, T, D)).astype(np.float32)


def _ours(config, inputs, do_eval):
  layer = config.Instantiate()
  with base_layer.eval_mode(do_eval):
    rngs = {base_layer.RANDOM: jax.random.key(0)}
    return np.asarray(layer.apply({}, *inputs, rngs=rngs))


def _lingvos(params, inputs, do_eval):
  lingvo_runtime.module('tensorflow').random.set_seed(3)
  run = lingvo_layer_runs.run(params, {}, inputs, do_eval=do_eval)
  return run.outputs[0]


def _assert_same_kind(ours, theirs, factor, groups):
  """Fails unless both multiply each group by 0 or by one factor, as often.

  Args:
    ours: [B, T, D], by what our layer multiplied each element.
    theirs: likewise Lingvo's.
    factor: of what is kept.
    groups: the axes along which elements stay or go together.
  """
  shares = []
  for scale in (ours, theirs):
    kept = np.abs(scale) > 1e-5
    np.testing.assert_allclose(scale[kept], factor, rtol=1e-4)
    one = kept.min(axis=groups)
    np.testing.assert_array_equal(one, kept.max(axis=groups))
    shares.append((one.mean(), one.size))
  (share, count), (other, _) = shares
  # Four standard errors of the difference of two shares.
  assert abs(share - other) <= 4 * np.sqrt(2 * 0.25 / count)


@pytest.mark.parametrize('do_eval', [False, True])
@pytest.mark.parametrize('weight', [1.0, 0.5])
@pytest.mark.parametrize('prob', [1.0, 0.6])
def test_stochastic_residual(do_eval, weight, prob):
  layers = lingvo_runtime.module('lingvo.core.layers_with_attention')
  fields = {'residual_weight': weight, 'survival_prob': prob}
  inputs = [X, RESIDUAL]
  theirs = _lingvos(
    layers.StochasticResidualLayer.Params().Set(name='residual', **fields),
    inputs,
    do_eval,
  )
  config = stochastics.StochasticResidual.config(**fields)
  ours = _ours(config, inputs, do_eval)
  if do_eval or prob == 1:
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    return
  _assert_same_kind(
    (ours - X) / RESIDUAL, (theirs - X) / RESIDUAL, weight / prob, (1, 2)
  )


@pytest.mark.parametrize('do_eval', [False, True])
@pytest.mark.parametrize(
  ('fields', 'groups'),
  [
    ({}, ()),
    ({'noise_shape_broadcast_dims': [1]}, (1,)),
    ({'noise_shape_broadcast_dims': [0, -1]}, (0, 2)),
    ({'noise_shape': [B, 1, D]}, (1,)),
    ({'noise_shape': [B, T, 1], 'noise_shape_broadcast_dims': [1]}, (1, 2)),
    ({'dropout_at_eval': True}, ()),
  ],
)
def test_dropout(do_eval, fields, groups):
  layers = lingvo_runtime.module('lingvo.core.layers')
  fields = {'keep_prob': 0.6, **fields}
  params = layers.DropoutLayer.Params().Set(name='dropout', **fields)
  config = stochastics.Dropout.config(**fields)
  theirs = _lingvos(params, [X], do_eval)
  ours = _ours(config, [X], do_eval)
  if do_eval and 'dropout_at_eval' not in fields:
    np.testing.assert_array_equal(ours, theirs)
    return
  _assert_same_kind(ours / X, theirs / X, 1 / 0.6, groups)
