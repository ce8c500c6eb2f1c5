"""Transformer layers: what flows where, and the feed-forward half's formula.

Shapes: B batch, T time, D model dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers import activations, normalizations, transformers

B, T, D = 2, 6, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
NO_PADDINGS = np.zeros([B, T], np.float32)
# The second example has four positions that count.
PADDINGS = (np.arange(T) >= np.array([[T], [4]])).astype(np.float32)


def _random_weights(layer, paddings=NO_PADDINGS):
  variables = layer.init({PARAMS: jax.random.key(0)}, X, paddings)
  shapes = base_layer.unbox(variables)[PARAMS]
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes
  )


def _layer(**fields):
  return transformers.Transformer.config(
    input_dims=D, hidden_dims=8, num_heads=2, **fields
  )


def _stack(num_layers=2, **fields):
  config = transformers.StackedTransformer.config(
    model_dims=D, num_layers=num_layers
  )
  config.transformer_layer_params_tpl.set(hidden_dims=8, num_heads=2, **fields)
  return config


def _sources_of(config, paddings=NO_PADDINGS) -> np.ndarray:
  """Returns [B, T, T]: whether each output depends on each input in time."""
  layer = config.Instantiate()
  weights = _random_weights(layer)

  def call(x):
    return layer.apply({PARAMS: weights}, x, paddings)

  jacobian = jax.jacobian(call)(X)
  of_same_example = np.stack([jacobian[b, :, :, b] for b in range(B)])
  return np.abs(of_same_example).max(axis=(2, 4)) > 0


def test_every_position_sees_every_other():
  assert _sources_of(_stack()).all()


def test_no_position_sees_a_later_one():
  want = np.broadcast_to(np.tril(np.ones([T, T], bool)), (B, T, T))
  np.testing.assert_array_equal(_sources_of(_stack(causal=True)), want)


def test_no_position_sees_padding():
  seen = _sources_of(_stack(), PADDINGS)
  counts = PADDINGS == 0
  for b in range(B):
    assert not seen[b][counts[b]][:, ~counts[b]].any()
    assert seen[b][counts[b]][:, counts[b]].all()


def test_examples_do_not_see_each_other():
  layer = _stack().Instantiate()
  weights = _random_weights(layer)
  other = X.copy()
  other[1] = 7.0
  y = layer.apply({PARAMS: weights}, X, NO_PADDINGS)
  z = layer.apply({PARAMS: weights}, other, NO_PADDINGS)
  np.testing.assert_array_equal(y[0], z[0])
  assert not np.array_equal(y[1], z[1])


def _norm(x, weights):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return x * (1 + weights['scale']) + weights['bias']


def _dense(x, weights):
  return x @ weights['linear']['w'] + weights['bias']['b']


@pytest.mark.parametrize('pre_norm', [True, False])
@pytest.mark.parametrize('apply_padding', [True, False])
def test_feed_forward(pre_norm, apply_padding):
  layer = transformers.TransformerFeedForward.config(
    input_dims=D,
    hidden_dims=8,
    use_pre_norm=pre_norm,
    apply_padding=apply_padding,
    residual_weight=0.5,
    activation_tpl=activations.Tanh.config(),
  ).Instantiate()
  w = _random_weights(layer)
  y = layer.apply({PARAMS: w}, X, PADDINGS)
  keep = (1 - PADDINGS)[..., None] if apply_padding else 1.0
  hidden = _norm(X, w['layer_norm']) if pre_norm else X
  hidden = np.tanh(_dense(hidden, w['ffn_layer1'])) * keep
  want = X + 0.5 * _dense(hidden, w['ffn_layer2']) * keep
  if not pre_norm:
    want = _norm(want, w['layer_norm'])
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('from_normalized', [False, True])
def test_attention_adds_to_its_input(from_normalized):
  layer = transformers.TransformerAttention.config(
    input_dims=D,
    hidden_dims=D,
    num_heads=2,
    residual_from_normalized=from_normalized,
  ).Instantiate()
  w = _random_weights(layer)
  w['atten']['post'] = jax.tree.map(np.zeros_like, w['atten']['post'])
  y = layer.apply({PARAMS: w}, X, NO_PADDINGS)
  want = _norm(X, w['layer_norm']) if from_normalized else X
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_the_output_may_be_normalised():
  config = _layer(output_norm_tpl=normalizations.LayerNorm.config())
  layer = config.Instantiate()
  w = _random_weights(layer)
  y = np.asarray(layer.apply({PARAMS: w}, X, NO_PADDINGS))
  plain = {k: v for k, v in w.items() if k != 'output_norm'}
  before = _layer().Instantiate().apply({PARAMS: plain}, X, NO_PADDINGS)
  want = _norm(np.asarray(before), w['output_norm'])
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_a_stack_is_its_layers_one_after_the_other():
  layer = _stack(num_layers=3).Instantiate()
  w = _random_weights(layer)
  assert set(w) == {'x_layers_0', 'x_layers_1', 'x_layers_2'}
  want = X
  for i in range(3):
    one = _layer().Instantiate()
    want = one.apply({PARAMS: w[f'x_layers_{i}']}, want, NO_PADDINGS)
  y = layer.apply({PARAMS: w}, X, NO_PADDINGS)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def _mixed_stack(num_layers, widths):
  tpls = [
    transformers.Transformer.config(hidden_dims=width, num_heads=2)
    for width in widths
  ]
  return transformers.StackedTransformer.config(
    model_dims=D, num_layers=num_layers, transformer_layer_params_tpl=tpls
  ).Instantiate()


def test_the_layers_of_a_stack_may_differ():
  layer = _mixed_stack(2, (16, 4))
  w = _random_weights(layer)
  widths = [
    w[f'x_layers_{i}']['ff_layer']['ffn_layer1']['bias']['b'].size
    for i in range(2)
  ]
  assert widths == [16, 4]


@pytest.mark.parametrize('num_layers', [1, 3])
def test_a_stack_has_as_many_layers_as_it_says(num_layers):
  with pytest.raises(
    errors.UserError, match=f'num_layers is {num_layers}, .* has 2 layers'
  ):
    _random_weights(_mixed_stack(num_layers, (16, 4)))


@pytest.mark.parametrize(
  ('half', 'field'),
  [
    ('tr_fflayer_tpl', 'relu_dropout_prob'),
    ('tr_fflayer_tpl', 'residual_dropout_prob'),
    ('tr_atten_tpl', 'residual_dropout_prob'),
  ],
)
def test_dropout_acts_in_training_only(half, field):
  plain, config = _layer().Instantiate(), _layer()
  getattr(config, half).set(**{field: 0.5})
  layer = config.Instantiate()
  w = {PARAMS: _random_weights(plain)}
  want = plain.apply(w, X, NO_PADDINGS)
  rngs = {RANDOM: jax.random.key(0)}
  trained = layer.apply(w, X, NO_PADDINGS, rngs=rngs)
  assert not np.allclose(trained, want)
  with base_layer.eval_mode():
    np.testing.assert_array_equal(layer.apply(w, X, NO_PADDINGS), want)


def test_half_precision_throughout():
  layer = _stack(causal=True)
  layer = layer.set(fprop_dtype=jnp.bfloat16).Instantiate()
  weights = jax.tree.map(jnp.asarray, _random_weights(layer))
  y = layer.apply({PARAMS: weights}, X.astype(jnp.bfloat16), PADDINGS)
  assert y.dtype == jnp.bfloat16 and jnp.isfinite(y).all()
