"""The convolution block of Conformers against numpy.

Shapes: B batch, T time, D model dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import NON_TRAINABLE, PARAMS, RANDOM, WeightInit
from pax_compat.layers import activations, linears, stochastics
from pax_compat.layers.convolutions import (
  depthwise_convolutions,
  light_convolutions,
)
from pax_compat.layers.normalizations import norm_layers

B, T, D = 2, 6, 4
VALID = np.arange(T) < np.array([[6], [3]])
PADDINGS = (1 - VALID).astype(np.float32)
X = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)


def _layer(**fields):
  """Returns a layer and random variables for it."""
  config = light_convolutions.LightConv1D.config(
    input_dims=D, kernel_size=3, **fields
  )
  layer = config.Instantiate()
  rng = np.random.default_rng(1)
  first = base_layer.unbox(layer.init_boxed(jax.random.key(0), X, PADDINGS))
  return layer, {
    collection: jax.tree.map(
      lambda w: rng.uniform(0.1, 1, w.shape).astype(np.float32),
      first[collection],
    )
    for collection in (PARAMS, NON_TRAINABLE)
    if collection in first
  }


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _linear(weights, x):
  return x @ weights['linear']['w'] + weights['bias']['b']


def _computed(weights, x, before):
  """Returns what the block adds to x, while it trains.

  Args:
    weights: of the block.
    x: its inputs.
    before: how many zeros the convolution puts before them.
  """
  y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  y = y * (1 + weights['ln']['scale']) + weights['ln']['bias']
  gate = _sigmoid(_linear(weights['linear_start_gated'], y))
  y = _linear(weights['linear_start_act'], y) * gate * VALID[..., None]
  kernel = weights['depthwise_conv1d']['w'][:, 0]
  y = np.pad(y, [(0, 0), (before, 2 - before), (0, 0)])
  y = sum(y[:, k : k + T] * kernel[k] for k in range(3))
  seen, norm = y[VALID], weights['conv_norm']
  y = (y - seen.mean(0)) / np.sqrt(seen.var(0) + 0.001)
  y = (y * (1 + norm['gamma']) + norm['beta']) * VALID[..., None]
  return _linear(weights['linear_end'], y * _sigmoid(y))


@pytest.mark.parametrize('is_causal', [False, True])
@pytest.mark.parametrize('use_2d_conv_norm', [False, True])
def test_training(is_causal, use_2d_conv_norm):
  layer, variables = _layer(
    is_causal=is_causal, use_2d_conv_norm=use_2d_conv_norm
  )
  y, _ = layer.apply(variables, X, PADDINGS, mutable=[NON_TRAINABLE])
  want = _computed(variables[PARAMS], X, before=2 if is_causal else 1)
  np.testing.assert_allclose((y - X)[VALID], want[VALID], atol=1e-4)


def test_padding_has_no_influence_on_what_is_valid():
  layer, variables = _layer()
  other = np.where(VALID[..., None], X, 1e3).astype(np.float32)
  y, updates = layer.apply(variables, X, PADDINGS, mutable=[NON_TRAINABLE])
  z, others = layer.apply(variables, other, PADDINGS, mutable=[NON_TRAINABLE])
  np.testing.assert_array_equal(y[VALID], z[VALID])
  jax.tree.map(np.testing.assert_array_equal, updates, others)


def test_another_normalisation():
  tpl = norm_layers.GroupNorm.config(
    num_groups=2, input_rank=3, cumulative=True
  )
  layer, variables = _layer(conv_norm_layer_tpl=tpl, is_causal=True)
  assert set(variables) == {PARAMS}
  y = layer.apply(variables, X, PADDINGS)
  later = X.copy()
  later[:, 4:] += 1
  z = layer.apply(variables, later, PADDINGS)
  np.testing.assert_allclose(y[:, :4], z[:, :4], atol=1e-6)


def test_the_result_is_dropped_out():
  layer, variables = _layer(dropout_prob=0.5)
  y, _ = layer.apply(
    variables,
    X,
    PADDINGS,
    mutable=[NON_TRAINABLE],
    rngs={RANDOM: jax.random.key(0)},
  )
  dropped = np.asarray(y == X)
  assert 0.2 < dropped.mean() < 0.8
  whole = _computed(variables[PARAMS], X, before=1)
  kept = VALID[..., None] & ~dropped
  np.testing.assert_allclose((y - X)[kept], 2 * whole[kept], rtol=1e-3)


def test_the_parts_of_the_template_are_layers_of_their_own():
  layer, _ = _layer()
  weights = layer.init_boxed(jax.random.key(0), X, PADDINGS)[PARAMS]
  first = weights['linear_start_act']['linear']['w'].value
  second = weights['linear_start_gated']['linear']['w'].value
  assert (first != second).all()
  # The bound of a matrix of twice the outputs.
  assert 0.5 < jnp.abs(first).max() < np.sqrt(6 / (D + 2 * D))


def test_what_templates_say_counts():
  """Where the block leaves it open."""
  layer, variables = _layer(
    linear_start_tpl=linears.FeedForward.config(
      params_init=WeightInit.Constant(0.25)
    ),
    depthwise_conv_tpl=depthwise_convolutions.DepthwiseConv1D.config(
      is_causal=True
    ),
    dropout_tpl=stochastics.Dropout.config(keep_prob=0.5),
  )
  first = layer.init_boxed(jax.random.key(0), X, PADDINGS)[PARAMS]
  for name in ('linear_start_act', 'linear_start_gated'):
    assert (first[name]['linear']['w'].value == 0.25).all()
  with base_layer.eval_mode():
    later = np.where(np.arange(T)[:, None] < 2, X, 5)
    got, want = (layer.apply(variables, x, 0 * PADDINGS) for x in (later, X))
  np.testing.assert_array_equal(got[:, :2], want[:, :2])
  y, _ = layer.apply(
    variables,
    X,
    PADDINGS,
    mutable=[NON_TRAINABLE],
    rngs={RANDOM: jax.random.key(0)},
  )
  assert 0.2 < np.mean(y == X) < 0.8


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (
      {
        'dropout_prob': 0.5,
        'dropout_tpl': stochastics.Dropout.config(keep_prob=0.9),
      },
      'LightConv1D.dropout_tpl.keep_prob is 0.9',
    ),
    (
      {
        'linear_end_tpl': linears.FeedForward.config(
          activation_tpl=activations.Tanh.config()
        )
      },
      'LightConv1D.linear_end_tpl.activation_tpl is Tanh; expected no act',
    ),
    (
      {
        'weight_split_dims_mapping': (
          light_convolutions.LightConv1D.WeightSharding.config(wt=['data'])
        )
      },
      'mapping.wt is .*; expected df and him',
    ),
  ],
)
def test_fields_that_do_not_fit_are_an_error(fields, message):
  config = light_convolutions.LightConv1D.config(
    input_dims=D, kernel_size=3, **fields
  )
  with pytest.raises(errors.UserError, match=message):
    config.Instantiate().init_boxed(jax.random.key(0), X, PADDINGS)


def test_weights_are_split_as_declared():
  sharding = light_convolutions.LightConv1D.WeightSharding
  layer, _ = _layer(
    weight_split_dims_mapping=sharding.config(
      df=['data', 'mdl'], him=[None, 'mdl', None]
    )
  )
  weights = layer.init_boxed(jax.random.key(0), X, PADDINGS)[PARAMS]

  def split(*path):
    box = weights
    for name in path:
      box = box[name]
    return list(box.meta.tensor_split_dims_mapping)

  assert split('linear_start_act', 'linear', 'w') == ['data', 'mdl']
  assert split('linear_start_gated', 'linear', 'w') == ['data', 'mdl']
  assert split('linear_end', 'linear', 'w') == ['mdl', 'data']
  assert split('depthwise_conv1d', 'w') == [None, None, ('mdl',)]
