"""Lingvo's `TransformerShardedMoeLayer` against its translation.

Shapes: B batch, T time, D model dims, H dims of experts' inner layers.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import base_layer
from tests.adaptors.translate import parity

B, T, D, H = 2, 8, 6, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [5]])).astype(np.float32)


@pytest.fixture(autouse=True)
def _not_eager():
  """The layer refuses to compute while Lingvo's eager flag is on."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  py_utils.SetEagerMode(False, test_mode=True)
  yield
  py_utils.SetEagerMode(True, test_mode=True)


def _module():
  return lingvo_runtime.module('lingvo.core.layers_with_attention')


def _params(**fields):
  return (
    _module()
    .TransformerShardedMoeLayer.Params()
    .Set(
      **{
        **dict(
          name='moe',
          input_dim=D,
          output_dim=D,
          hidden_dim=H,
          num_experts=4,
          num_groups=4,
        ),
        **fields,
      }
    )
  )


def _fprop(layer, theta, x, paddings):
  """Returns Lingvo's output and the loss that it adds to those of its task."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  with py_utils.AuxLossContext() as context:
    y = layer.FProp(theta, x, paddings)
    [aux_loss] = context.aux_losses
  return {'y': y, 'aux_loss': aux_loss}


def _call(layer, x, paddings):
  y, collections = layer.apply(
    layer.variables, x, paddings, mutable=[base_layer.AUX_LOSS]
  )
  [aux_loss] = collections[base_layer.AUX_LOSS].values()
  return {'y': y, 'aux_loss': aux_loss.value}


@pytest.mark.parametrize(
  'fields',
  [
    dict(),
    dict(
      use_glu=True,
      activation='SILU',
      pre_layer_norm=False,
      expert_weight_shards=3,
      expert_capacity_dim=2,
    ),
    dict(disable_grouping=True, num_groups=0, residual_weight=0.5),
    dict(min_group_size=5, num_groups=8, expert_capacity_factor=1.0),
    dict(gating_func='token_shuffle', num_groups=2),
  ],
)
def test_the_layer(fields):
  params = _params(**fields)
  translated = parity.translate(params)
  assert translated.config.moe_load_balance_loss_weight == 0
  parity.check_pair(
    params,
    translated.config.set(moe_load_balance_loss_weight=1.0),
    translated.variables,
    [X, PADDINGS],
    fprop=_fprop,
    call=_call,
    do_eval=False,
  )


def test_what_is_dropped():
  config = parity.translate(
    _params(
      relu_dropout_prob=0.1,
      residual_dropout_prob=0.2,
      residual_droppath_prob=0.3,
      residual_weight=0.5,
      second_expert_policy='sampling',
    )
  ).config
  np.testing.assert_allclose(config.relu_dropout_prob, 0.1)
  np.testing.assert_allclose(config.residual_dropout_prob, 0.2)
  assert config.residual_droppath_prob == 0.3
  assert config.residual_weight == 1  # as in Lingvo, with droppath
  assert config.second_expert_policy == 'sampling'


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(gating_func='hashing'), "'hashing' is not translated"),
    (dict(output_dim=D + 1), 'output_dim'),
    (dict(add_skip_connection=False), 'add_skip_connection'),
    (dict(device_mesh=[0, 1]), 'device_mesh'),
  ],
)
def test_what_is_refused(fields, message):
  [issue] = parity.issues_of(_params(**fields))
  assert message in issue


@pytest.mark.parametrize(
  ('module', 'name', 'why'),
  [
    ('lingvo.core.layers_with_attention', 'MoEFeedforwardLayer', 'MoEBuilder'),
    ('lingvo.core.layers_with_attention', 'HybridFeedforwardLayer', 'symbol'),
  ],
)
def test_mixtures_without_a_translation(module, name, why):
  params = getattr(lingvo_runtime.module(module), name).Params()
  [issue] = parity.issues_of(params)
  assert name in issue and why in issue


def test_a_stack_with_mixtures():
  attention = lingvo_runtime.module('lingvo.core.batch_major_attention')
  params = attention.StackedTransformerLayers.Params().Set(
    name='stack',
    num_layers=2,
    mdl_dim=D,
    hidden_dim=H,
    num_atten_heads=2,
    dropout_prob=0.0,
    moe_layers=[1],
    num_experts=3,
    num_groups=2,
    min_group_size=3,
  )
  parity.check_layer(
    params,
    [X, PADDINGS],
    fprop=lambda layer, theta, x, paddings: layer.FProp(theta, x, paddings)[0],
    call=lambda layer, x, paddings: layer(x, paddings),
    do_eval=False,
  )
