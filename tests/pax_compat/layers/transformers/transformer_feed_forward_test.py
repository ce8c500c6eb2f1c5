"""The feed-forward block of a Transformer against its formula.

Shapes: B batch, T time, D model dims, F dims of the inner layer.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers import activations, linears, stochastics
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)
from tests.pax_compat.layers import numpy_transformer as reference

B, T, D, F = 2, 5, 4, 6
X = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [3]])).astype(np.float32)
KEEP = 1 - PADDINGS[..., None]
POLICIES = ['pre', 'post', 'primer_hybrid', 'post_skip']


def _config(**fields):
  return TransformerFeedForward.config(input_dims=D, hidden_dims=F, **fields)


def _close(y, want):
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def _run(config, x=X, paddings=None, seed=1):
  layer = config.Instantiate()
  weights = reference.random_weights(layer, x, seed=seed)
  return layer.apply({PARAMS: weights}, x, paddings), weights


@pytest.mark.parametrize('gated', [False, True])
@pytest.mark.parametrize('policy', POLICIES)
def test_the_formula(policy, gated):
  config = _config(
    norm_policy=policy,
    use_gated_activation=gated,
    activation_tpl=activations.Tanh.config(),
  )
  y, weights = _run(config)
  _close(y, reference.feed_forward(X, weights, policy, np.tanh))


@pytest.mark.parametrize('policy', ['pre', 'primer_hybrid'])
def test_the_gradients(policy):
  layer = _config(norm_policy=policy, use_gated_activation=True).Instantiate()
  weights = reference.random_weights(layer, X)
  direction = reference.random_weights(layer, X, seed=2)

  def loss(step):
    moved = jax.tree.map(lambda w, d: w + step * d, weights, direction)
    return np.sum(np.square(layer.apply({PARAMS: moved}, X)), dtype=np.float64)

  gradients = jax.grad(
    lambda w: jnp.sum(jnp.square(layer.apply({PARAMS: w}, X)))
  )(weights)
  along = sum(
    np.sum(g * d)
    for g, d in zip(
      jax.tree.leaves(gradients), jax.tree.leaves(direction), strict=True
    )
  )
  np.testing.assert_allclose(
    along, (loss(1e-3) - loss(-1e-3)) / 2e-3, rtol=2e-2
  )


def test_padding_is_zero_after_each_projection():
  y, w = _run(_config(), paddings=PADDINGS)
  inner = reference.dense(reference.norm(X, w['layer_norm']), w['ffn_layer1'])
  inner = np.maximum(inner, 0) * KEEP
  _close(y, X + reference.dense(inner, w['ffn_layer2']) * KEEP)


def test_padding_may_be_zero_in_the_input_instead():
  y, weights = _run(_config(apply_padding_first=True), paddings=PADDINGS)
  _close(y, reference.feed_forward(X * KEEP, weights))


def test_what_is_padded_is_gone_even_if_it_is_not_a_number():
  x = np.where(PADDINGS[..., None] > 0, np.nan, X).astype(np.float32)
  y, _ = _run(_config(apply_padding_first=True), x, PADDINGS)
  assert np.isfinite(y).all()


def test_the_residual_has_a_weight():
  y, weights = _run(_config(residual_weight=0.25))
  _close(y, X + 0.25 * (reference.feed_forward(X, weights) - X))


def test_without_a_residual_the_output_may_have_other_dims():
  config = _config(output_dims=3, add_skip_connection=False)
  y, w = _run(config)
  inner = reference.dense(reference.norm(X, w['layer_norm']), w['ffn_layer1'])
  _close(y, reference.dense(np.maximum(inner, 0), w['ffn_layer2']))
  assert y.shape == (B, T, 3)


def test_a_norm_of_other_output_dims_fits_them():
  config = _config(
    output_dims=3, add_skip_connection=False, norm_policy='primer_hybrid'
  )
  _, weights = _run(config)
  assert weights['pre_layer_norm']['scale'].shape == (D,)
  assert weights['post_layer_norm']['scale'].shape == (3,)


def test_the_projections_may_have_no_biases():
  _, weights = _run(_config(has_bias=False, use_gated_activation=True))
  for name in ('ffn_layer1', 'ffn_layer1_gate', 'ffn_layer2'):
    assert set(weights[name]) == {'linear'}


def test_the_projections_are_layers_of_their_own():
  _, weights = _run(_config(use_gated_activation=True))
  shapes = {k: v['linear']['w'].shape for k, v in weights.items() if 'ffn' in k}
  assert shapes == {
    'ffn_layer1': (D, F),
    'ffn_layer1_gate': (D, F),
    'ffn_layer2': (F, D),
  }


def test_the_outer_projection_may_have_a_template_of_its_own():
  config = _config(fflayer2_tpl=linears.FeedForward.config(has_bias=False))
  _, weights = _run(config)
  assert 'bias' in weights['ffn_layer1'] and 'bias' not in weights['ffn_layer2']


def test_the_norm_is_what_the_template_says():
  config = _config(ln_tpl=norm_layers.RmsNorm.config())
  _, weights = _run(config)
  assert set(weights['layer_norm']) == {'scale'}


@pytest.mark.parametrize(
  'field',
  ['relu_dropout_prob', 'residual_dropout_prob', 'residual_droppath_prob'],
)
def test_dropout_acts_in_training_only(field):
  plain, dropping = (
    _config(**fields).Instantiate() for fields in ({}, {field: 0.5})
  )
  weights = {PARAMS: reference.random_weights(plain, X)}
  want = plain.apply(weights, X)
  rngs = {RANDOM: jax.random.key(0)}
  assert not np.allclose(dropping.apply(weights, X, rngs=rngs), want)
  with base_layer.eval_mode():
    np.testing.assert_array_equal(dropping.apply(weights, X), want)


def test_droppath_leaves_out_whole_examples_and_weighs_the_others():
  layer = _config(
    residual_droppath_prob=0.5, residual_weight=0.25
  ).Instantiate()
  x = np.repeat(X[:1], 64, axis=0)
  weights = {PARAMS: reference.random_weights(layer, x)}
  rngs = {RANDOM: jax.random.key(0)}
  added = np.asarray(layer.apply(weights, x, rngs=rngs)) - x
  with base_layer.eval_mode():
    whole = np.asarray(layer.apply(weights, x)) - x
  gone = (added == 0).all(axis=(1, 2))
  assert 16 < gone.sum() < 48
  _close(added[~gone], 2 * whole[~gone])


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'norm_policy': 'prae'}, "norm_policy is 'prae'; did you mean: pre"),
    ({'output_dims': 3}, 'output_dims is 3 and input_dims 4'),
    (
      {'add_skip_connection': False, 'residual_droppath_prob': 0.1},
      'residual_droppath_prob is 0.1, but add_skip_connection is False',
    ),
    (
      {
        'relu_dropout_prob': 0.1,
        'relu_dropout_tpl': stochastics.Dropout.config(keep_prob=0.5),
      },
      r'relu_dropout_tpl.keep_prob is 0.5, but .* sets it to 0.9',
    ),
    (
      {
        'has_bias': False,
        'fflayer_tpl': linears.FeedForward.config(has_bias=True),
      },
      'fflayer_tpl.has_bias is True, but .* sets it to False',
    ),
  ],
)
def test_mistakes_are_named(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _run(_config(**fields))


def test_weights_are_split_as_declared():
  config = _config(use_gated_activation=True)
  config.weight_split_dims_mapping.set(ffn0=['data', 'mdl'], ffn1=['mdl', None])
  variables = config.Instantiate().init_boxed({PARAMS: jax.random.key(0)}, X)
  split = {
    name: {
      kind: list(value[kind][leaf].meta.tensor_split_dims_mapping)
      for kind, leaf in (('linear', 'w'), ('bias', 'b'))
    }
    for name, value in variables[PARAMS].items()
    if 'ffn' in name
  }
  inner = {'linear': ['data', 'mdl'], 'bias': ['mdl']}
  assert split == {
    'ffn_layer1': inner,
    'ffn_layer1_gate': inner,
    'ffn_layer2': {'linear': ['mdl', None], 'bias': [None]},
  }
