"""A Transformer layer against numpy, and its decoding against itself.

Shapes: B batch, T time, S source time, D model dims, N heads.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, config, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers import linears
from pax_compat.layers.attentions import dot_product
from pax_compat.layers.attentions.attention_masks import AttentionMask
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)
from pax_compat.layers.transformers.transformer_layers import Transformer
from tests.pax_compat.layers import numpy_transformer as reference
from tests.pax_compat.layers.step_by_step import decode

B, T, S, D, N = 2, 6, 5, 4, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
CROSS = RNG.normal(size=(B, S, D)).astype(np.float32)
# The second example has four positions that count.
PADDINGS = (np.arange(T) >= np.array([[T], [4]])).astype(np.float32)
NO_PADDINGS = np.zeros([B, T], np.float32)
CAUSAL = np.tril(np.ones([T, T], bool))
POLICIES = ['pre', 'post', 'primer_hybrid', 'post_skip']


def _config(**fields):
  return Transformer.config(input_dims=D, hidden_dims=8, num_heads=N, **fields)


def _close(y, want):
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def _run(config, **given):
  layer = config.Instantiate()
  weights = reference.random_weights(layer, X, **given)
  return np.asarray(layer.apply({PARAMS: weights}, X, **given)[0]), weights


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('policy', POLICIES)
def test_the_formula(policy, causal):
  y, weights = _run(_config(norm_policy=policy, mask_self_attention=causal))
  _close(y, reference.layer(X, weights, CAUSAL if causal else True, policy))


@pytest.mark.parametrize('policy', POLICIES)
def test_the_formula_with_cross_attention(policy):
  visible = RNG.random((B, 1, T, S)) > 0.3
  visible[..., 0] = True
  y, weights = _run(
    _config(norm_policy=policy, use_cross_attention=True),
    cross_inputs=CROSS,
    cross_attention_mask=visible,
  )
  want = reference.layer(X, weights, True, policy, CROSS, visible)
  _close(y, want)


def test_gradients_reach_what_it_attends_to():
  layer = _config(use_cross_attention=True).Instantiate()
  weights = reference.random_weights(layer, X, cross_inputs=CROSS)

  def output(cross):
    y = layer.apply({PARAMS: weights}, X, cross_inputs=cross)[0]
    return jnp.sum(jnp.square(y))

  direction = RNG.normal(size=CROSS.shape).astype(np.float32)
  along = np.sum(jax.grad(output)(CROSS) * direction)

  def moved(step):
    y = reference.layer(X, weights, True, cross=CROSS + step * direction)
    return np.sum(np.square(y, dtype=np.float64))

  np.testing.assert_allclose(
    along, (moved(1e-3) - moved(-1e-3)) / 2e-3, rtol=1e-2
  )


def test_paddings_are_hidden():
  y, weights = _run(_config(), paddings=PADDINGS)
  visible = (PADDINGS == 0)[:, None, None, :]
  want = reference.layer(X, weights, visible)
  counts = PADDINGS == 0
  _close(y[counts], want[counts])


def test_a_mask_takes_the_place_of_paddings():
  visible = RNG.random((B, N, T, T)) > 0.5
  visible |= np.eye(T, dtype=bool)
  y, weights = _run(_config(), attention_mask=visible)
  _close(y, reference.layer(X, weights, visible))


def test_positions_tell_rotated_heads_where_they_are():
  tpl = dot_product.DotProductAttention.config(use_rotary_position_emb=True)
  layer = _config(tr_atten_tpl=tpl).Instantiate()
  weights = {PARAMS: reference.random_weights(layer, X)}
  plain = layer.apply(weights, X)[0]
  counted = np.broadcast_to(np.arange(T), (B, T))
  other = np.array([[0, 1, 2, 0, 1, 2]] * B)
  same = layer.apply(weights, X, segment_pos=counted)[0]
  _close(same, plain)
  assert not np.allclose(layer.apply(weights, X, segment_pos=other)[0], plain)


def test_without_a_feed_forward_there_is_attention_only():
  y, weights = _run(_config(tr_fflayer_tpl=None))
  assert 'ff_layer' not in weights
  want = reference.residual(
    X,
    lambda q: reference.attention(q, q, weights['self_attention'], True),
    weights,
    'pre',
  )
  _close(y, want)


def test_the_residual_may_come_from_what_attention_sees():
  config = _config(residual_from_normalized=True, tr_fflayer_tpl=None)
  y, weights = _run(config)
  seen = reference.norm(X, weights['layer_norm'])
  added = reference.attention(seen, seen, weights['self_attention'], True)
  _close(y, seen + added)


def test_the_output_may_be_normalised():
  y, weights = _run(_config(output_norm_tpl=norm_layers.LayerNorm.config()))
  want = reference.layer(X, weights, True)
  _close(y, reference.norm(want, weights['output_norm']))


def test_the_feed_forward_may_normalise_otherwise():
  tpl = TransformerFeedForward.config(norm_policy='post')
  y, weights = _run(_config(norm_policy='pre', tr_fflayer_tpl=tpl))
  attended = reference.residual(
    X,
    lambda q: reference.attention(q, q, weights['self_attention'], True),
    weights,
    'pre',
  )
  _close(y, reference.feed_forward(attended, weights['ff_layer'], 'post'))


def test_heads_may_have_any_dims():
  _, weights = _run(_config(dim_per_head=3))
  assert weights['self_attention']['query']['w'].shape == (D, N, 3)


def test_cross_attention_may_have_a_template_of_its_own():
  tpl = dot_product.DotProductAttention.config(use_bias=False)
  _, weights = _run(
    _config(use_cross_attention=True, cross_atten_tpl=tpl), cross_inputs=CROSS
  )
  assert set(weights['cross_attention']['key']) == {'w'}
  assert set(weights['self_attention']['key']) == {'w', 'b'}


def test_one_norm_template_is_one_layer_where_it_is_used_twice():
  norm = norm_layers.LayerNorm.config()
  shared = _config(ln_tpl=norm)
  shared.tr_fflayer_tpl.ln_tpl = norm
  _, weights = _run(shared)
  assert 'layer_norm' in weights and 'layer_norm' not in weights['ff_layer']


@pytest.mark.parametrize(
  'field',
  [
    'atten_dropout_prob',
    'residual_dropout_prob',
    'relu_dropout_prob',
    'residual_droppath_prob',
  ],
)
def test_dropout_acts_in_training_only(field):
  plain, dropping = (
    _config(**fields).Instantiate() for fields in ({}, {field: 0.5})
  )
  weights = {PARAMS: reference.random_weights(plain, X)}
  want, _ = plain.apply(weights, X)
  rngs = {RANDOM: jax.random.key(0)}
  assert not np.allclose(dropping.apply(weights, X, rngs=rngs)[0], want)
  with base_layer.eval_mode():
    np.testing.assert_array_equal(dropping.apply(weights, X)[0], want)


def test_half_precision_throughout():
  layer = _config(fprop_dtype=jnp.bfloat16).Instantiate()
  weights = {PARAMS: reference.random_weights(layer, X)}
  y = layer.apply(weights, X.astype(jnp.bfloat16), PADDINGS)[0]
  assert y.dtype == jnp.bfloat16 and jnp.isfinite(y).all()


@pytest.mark.parametrize('sizes', [[1] * T, [3, 1, 2], [T]])
@pytest.mark.parametrize('cross', [False, True])
def test_decoding_is_the_whole_step_by_step(sizes, cross):
  layer = _config(
    mask_self_attention=True, use_cross_attention=cross
  ).Instantiate()
  given = {'cross_inputs': CROSS} if cross else {}
  hidden = (np.arange(S) < np.array([[S], [2]]))[:, None, None]
  step = {'cross_attention_mask': hidden} if cross else {}
  weights = reference.random_weights(layer, X, **given, **step)
  want = layer.apply({PARAMS: weights}, X, **given, **step)[0]
  y = decode(layer, weights, X, sizes, B, T + 2, init=given, step=step)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_decoding_with_rotated_heads_in_cross_attention_too():
  tpl = dot_product.DotProductAttention.config(use_rotary_position_emb=True)
  layer = _config(
    mask_self_attention=True, use_cross_attention=True, tr_atten_tpl=tpl
  ).Instantiate()
  given = {'cross_inputs': CROSS}
  weights = reference.random_weights(layer, X, **given)
  want = layer.apply({PARAMS: weights}, X, **given)[0]
  y = decode(layer, weights, X, [2, 1, 3], B, T, init=given)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_positions_of_one_step_may_see_each_other():
  layer = _config().Instantiate()
  weights = reference.random_weights(layer, X)
  y = decode(
    layer, weights, X, [T], B, T + 2, step={'attention_mask': AttentionMask()}
  )
  _close(y, reference.layer(X, weights, True))


def test_cross_attention_may_be_skipped_if_it_is_allowed():
  layer = _config(
    use_cross_attention=True,
    allow_skip_cross_attention=True,
    mask_self_attention=True,
  ).Instantiate()
  weights = reference.random_weights(layer, X, cross_inputs=CROSS)
  want = reference.layer(X, weights, CAUSAL)
  _close(layer.apply({PARAMS: weights}, X)[0], want)
  _close(decode(layer, weights, X, [4, 2], B, T), want)


@pytest.mark.parametrize('method', ['__call__', 'init_states'])
def test_cross_attention_needs_another_sequence(method):
  layer = _config(use_cross_attention=True).Instantiate()
  weights = reference.random_weights(layer, X, cross_inputs=CROSS)
  args = [X] if method == '__call__' else [B, T]
  with pytest.raises(errors.UserError, match='there are no cross_inputs'):
    layer.apply({PARAMS: weights}, *args, method=method)


def test_a_setting_of_a_part_that_the_layer_contradicts_is_a_mistake():
  tpl = dot_product.DotProductAttention.config(num_heads=1)
  with pytest.raises(
    errors.UserError,
    match='Transformer.tr_atten_tpl.num_heads is 1, but .* sets it to 2',
  ):
    _run(_config(tr_atten_tpl=tpl))


@pytest.mark.parametrize(
  ('missing', 'message'),
  [
    ('num_heads', 'self_attention.num_heads is required'),
    ('hidden_dims', 'ff_layer.hidden_dims is required'),
  ],
)
def test_what_is_missing_is_named(missing, message):
  with pytest.raises(config.RequiredError, match=message):
    _run(_config().set(**{missing: None}))


def test_a_part_may_hold_what_the_layer_does_not_say():
  tpl = TransformerFeedForward.config(
    hidden_dims=5,
    relu_dropout_prob=0.5,
    fflayer_tpl=linears.FeedForward.config(),
  )
  layer = _config(tr_fflayer_tpl=tpl).set(hidden_dims=None).Instantiate()
  weights = reference.random_weights(layer, X)
  inner = weights['ff_layer']['ffn_layer1']['linear']['w']
  assert inner.shape == (D, 5)
  rngs = {RANDOM: jax.random.key(0)}
  trained = layer.apply({PARAMS: weights}, X, rngs=rngs)[0]
  assert not np.allclose(trained, reference.layer(X, weights, True))
