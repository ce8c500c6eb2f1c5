"""Stacks against their layers, and repeated stacks against plain ones.

Shapes: B batch, T time, S source time, D model dims.
"""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers.attentions import dot_product
from pax_compat.layers.attentions.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.layers.transformers.transformer_layers import Transformer
from tests.pax_compat.layers import numpy_transformer as reference
from tests.pax_compat.layers.step_by_step import decode

B, T, S, D, LAYERS = 2, 6, 5, 4, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
CROSS = RNG.normal(size=(B, S, D)).astype(np.float32)
# The second example has four positions that count.
PADDINGS = (np.arange(T) >= np.array([[T], [4]])).astype(np.float32)
NO_PADDINGS = np.zeros([B, T], np.float32)
# Two examples in each row, and one position of padding in the second.
SEGMENT_IDS = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 2, 0]])
SEGMENT_POS = np.array([[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 2, 0]])
REMAT = dict(remat=True, checkpoint_policy='save_nothing')


def _stack(num_layers=LAYERS, **fields):
  return StackedTransformer.config(
    **{
      **dict(model_dims=D, num_layers=num_layers, hidden_dims=8, num_heads=2),
      **fields,
    }
  )


def _repeated(x_times=LAYERS, num_layers=1, policy='save_nothing', **fields):
  return StackedTransformerRepeated.config(
    block=_stack(num_layers, **fields),
    x_times=x_times,
    checkpoint_policy=policy,
  )


def _stacked_weights(weights, x_times=LAYERS):
  """Returns the weights of a repeated stack, from those of a plain one."""
  count = len(weights) // x_times
  block = {
    f'x_layers_{j}': jax.tree.map(
      lambda *each: np.stack(each),
      *(weights[f'x_layers_{i * count + j}'] for i in range(x_times)),
    )
    for j in range(count)
  }
  return {'repeat': {'sub': block}}


def _sources_of(config, **given) -> np.ndarray:
  """Returns [B, T, T]: whether each output depends on each input in time."""
  layer = config.Instantiate()
  weights = {PARAMS: reference.random_weights(layer, X, **given)}
  jacobian = jax.jit(jax.jacobian(lambda x: layer.apply(weights, x, **given)))(
    X
  )
  of_same_example = np.stack([jacobian[b, :, :, b] for b in range(B)])
  return np.abs(of_same_example).max(axis=(2, 4)) > 0


def test_a_stack_is_its_layers_one_after_the_other():
  layer = _stack().Instantiate()
  weights = reference.random_weights(layer, X)
  assert set(weights) == {f'x_layers_{i}' for i in range(LAYERS)}
  want = X
  for i in range(LAYERS):
    want = reference.layer(want, weights[f'x_layers_{i}'], True)
  y = layer.apply({PARAMS: weights}, X)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_every_position_sees_every_other():
  assert _sources_of(_stack(2)).all()


def test_no_position_sees_a_later_one():
  want = np.broadcast_to(np.tril(np.ones([T, T], bool)), (B, T, T))
  seen = _sources_of(_stack(2, mask_self_attention=True))
  np.testing.assert_array_equal(seen, want)


@pytest.mark.parametrize(
  ('window', 'reach'), [((1, 1), 2), ([None, (1, 1)], T)]
)
def test_no_position_sees_beyond_the_window(window, reach):
  layer = Transformer.config(
    tr_atten_tpl=MultiQueryDotProductAttention.config(), tr_fflayer_tpl=None
  )
  stack = _stack(
    2,
    hidden_dims=None,
    transformer_layer_params_tpl=layer,
    local_window_size=window,
  )
  distance = np.abs(np.arange(T)[:, None] - np.arange(T))
  want = np.broadcast_to(distance <= reach, (B, T, T))
  np.testing.assert_array_equal(_sources_of(stack), want)


def test_no_position_sees_padding():
  seen = _sources_of(_stack(2), paddings=PADDINGS)
  counts = PADDINGS == 0
  for b in range(B):
    assert not seen[b][counts[b]][:, ~counts[b]].any()
    assert seen[b][counts[b]][:, counts[b]].all()


@pytest.mark.parametrize('fold', [False, True])
def test_no_position_sees_another_packed_example(fold):
  paddings = (SEGMENT_IDS == 0).astype(np.float32)
  seen = _sources_of(
    _stack(2, packed_input=True, fold_padding_with_segment_mask=fold),
    paddings=paddings,
    segment_ids=SEGMENT_IDS,
    segment_pos=SEGMENT_POS,
  )
  same = SEGMENT_IDS[:, :, None] == SEGMENT_IDS[:, None]
  counts = SEGMENT_IDS > 0
  for b in range(B):
    np.testing.assert_array_equal(
      seen[b][counts[b]][:, counts[b]], same[b][counts[b]][:, counts[b]]
    )


def test_a_mask_hides_more():
  visible = np.eye(T, k=-1, dtype=bool) | np.eye(T, dtype=bool)
  seen = _sources_of(_stack(1), segment_mask=visible[None, None])
  np.testing.assert_array_equal(seen, np.broadcast_to(visible, (B, T, T)))


def test_examples_do_not_see_each_other():
  layer = _stack().Instantiate()
  weights = {PARAMS: reference.random_weights(layer, X)}
  other = X.copy()
  other[1] = 7.0
  y, z = layer.apply(weights, X), layer.apply(weights, other)
  np.testing.assert_array_equal(y[0], z[0])
  assert not np.array_equal(y[1], z[1])


def test_cross_attention_keeps_to_its_example():
  source_ids = np.array([[1, 1, 2, 2, 2], [1, 2, 2, 2, 0]])
  given = dict(
    segment_ids=SEGMENT_IDS,
    cross_segment_ids=source_ids,
    cross_paddings=(source_ids == 0).astype(np.float32),
  )
  layer = _stack(1, use_cross_attention=True, packed_input=True).Instantiate()
  weights = reference.random_weights(layer, X, cross_inputs=CROSS, **given)
  jacobian = jax.jacobian(
    lambda cross: layer.apply({PARAMS: weights}, X, cross_inputs=cross, **given)
  )(CROSS)
  seen = np.stack([jacobian[b, :, :, b] for b in range(B)])
  seen = np.abs(seen).max(axis=(2, 4)) > 0
  counts = SEGMENT_IDS > 0
  want = SEGMENT_IDS[:, :, None] == source_ids[:, None]
  np.testing.assert_array_equal(seen[counts], want[counts])


@pytest.mark.parametrize(
  ('policy', 'shape'), [('pre', (3, 1)), ('primer_hybrid', (2, 2))]
)
def test_repeated_layers_are_the_layers_of_a_plain_stack(policy, shape):
  x_times, num_layers = shape
  fields = dict(
    transformer_layer_params_tpl=Transformer.config(norm_policy=policy),
    mask_self_attention=True,
  )
  plain = _stack(x_times * num_layers, **fields).Instantiate()
  repeated = _repeated(x_times, num_layers, **fields).Instantiate()
  weights = reference.random_weights(plain, X, PADDINGS)

  def gradients_and_output(layer, weights):
    def loss(weights):
      y = layer.apply({PARAMS: weights}, X, PADDINGS)
      return jnp.sum(jnp.where(PADDINGS[..., None] > 0, 0, y) ** 2), y

    return jax.jit(jax.grad(loss, has_aux=True))(weights)

  gradients, y = gradients_and_output(plain, weights)
  stacked, z = gradients_and_output(
    repeated, _stacked_weights(weights, x_times)
  )
  np.testing.assert_allclose(z, y, rtol=1e-5, atol=1e-5)
  want = _stacked_weights(jax.device_get(gradients), x_times)
  scale = max(np.abs(g).max() for g in jax.tree.leaves(want))
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5 * scale),
    stacked,
    want,
  )


def _equations(jaxpr) -> int:
  """Returns how many equations there are, those of inner jaxprs included."""
  inner = 0
  for equation in jaxpr.eqns:
    for value in jax.tree.leaves(
      list(equation.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
    ):
      value = getattr(value, 'jaxpr', value)
      inner += _equations(value) if hasattr(value, 'eqns') else 0
  return len(jaxpr.eqns) + inner


def _step_sizes(config) -> tuple[int, int]:
  """Returns the equations and the HLO lines of a gradient."""
  layer = config.Instantiate()
  weights = reference.random_weights(layer, X)
  step = jax.jit(
    jax.grad(lambda w: jnp.sum(layer.apply({PARAMS: w}, X) ** 2))
  ).trace(weights)
  return _equations(step.jaxpr.jaxpr), len(step.lower().as_text().splitlines())


def test_what_is_compiled_does_not_grow_with_the_number_of_repeats():
  assert _step_sizes(_repeated(4)) == _step_sizes(_repeated(32))
  assert _step_sizes(_stack(4)) > _step_sizes(_stack(2))


@pytest.mark.parametrize('make', [_stack, _repeated])
@pytest.mark.parametrize('sizes', [[1] * T, [4, 2]])
@pytest.mark.parametrize('cross', [False, True])
def test_decoding_is_the_whole_step_by_step(make, sizes, cross):
  fields = dict(mask_self_attention=True, use_cross_attention=cross)
  config = make(**fields)
  cross_paddings = (np.arange(S) >= np.array([[S], [2]])).astype(np.float32)
  init = {'cross_inputs': CROSS} if cross else {}
  step = {'cross_paddings': cross_paddings} if cross else {}
  layer = config.Instantiate()
  weights = reference.random_weights(layer, X, **init, **step)
  want = jax.jit(layer.apply)({PARAMS: weights}, X, **init, **step)
  y = decode(layer, weights, X, sizes, B, T + 1, init=init, step=step)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_decoding_repeats_in_a_loop_gives_the_same():
  layer = _repeated(mask_self_attention=True).set(unroll_in_decode=False)
  layer = layer.Instantiate()
  weights = reference.random_weights(layer, X)
  want = jax.jit(layer.apply)({PARAMS: weights}, X)
  y = decode(layer, weights, X, [1] * T, B, T)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def _kept_bytes(config) -> int:
  layer = config.Instantiate()
  weights = reference.random_weights(layer, X)
  backward = jax.eval_shape(
    lambda w: jax.vjp(lambda w: layer.apply({PARAMS: w}, X), w)[1], weights
  )
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(backward))


@pytest.mark.parametrize('make', [_stack, _repeated])
def test_the_policy_says_what_is_kept(make):
  def kept(policy):
    if make is _repeated:
      return _kept_bytes(_repeated(policy=policy))
    return _kept_bytes(_stack(remat=True, checkpoint_policy=policy))

  nothing, out_proj, named, dots, everything = (
    kept(f'save_{what}')
    for what in (
      'nothing',
      'out_proj',
      'dot_except_logits',
      'dot_only',
      'everything',
    )
  )
  assert nothing < out_proj < named < dots < everything


def test_remat_changes_no_gradient():
  plain, remat = (_stack(1, **f).Instantiate() for f in ({}, REMAT))
  weights = reference.random_weights(plain, X)

  def gradient(layer):
    def loss(weights):
      return jnp.sum(layer.apply({PARAMS: weights}, X) ** 2)

    return jax.jit(jax.grad(loss))(weights)

  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3),
    gradient(remat),
    gradient(plain),
  )


def _tpls(*widths):
  return [Transformer.config(hidden_dims=w, num_heads=2) for w in widths]


def _own(num_layers, tpls, **fields):
  return StackedTransformer.config(
    model_dims=D,
    num_layers=num_layers,
    transformer_layer_params_tpl=tpls,
    **fields,
  )


def _widths(config) -> list[int]:
  weights = reference.random_weights(config.Instantiate(), X)
  return [
    weights[f'x_layers_{i}']['ff_layer']['ffn_layer1']['bias']['b'].size
    for i in range(len(weights))
  ]


def test_the_layers_of_a_stack_may_differ():
  assert _widths(_own(2, _tpls(16, 4))) == [16, 4]


def test_a_shorter_list_is_for_several_layers_each():
  assert _widths(_own(4, _tpls(16, 4))) == [16, 16, 4, 4]


@pytest.mark.parametrize('num_layers', [1, 3])
def test_a_stack_has_as_many_layers_as_it_says(num_layers):
  with pytest.raises(
    errors.UserError, match=f'num_layers is {num_layers}, .* has 2 layers'
  ):
    _widths(_own(num_layers, _tpls(16, 4)))


@pytest.mark.parametrize('fields', [{}, REMAT])
def test_a_template_that_is_there_twice_is_one_layer(fields):
  (tpl,) = _tpls(8)
  layer = _own(2, [tpl, tpl], **fields).Instantiate()
  weights = reference.random_weights(layer, X)
  assert set(weights) == {'x_layers_0'}
  y = layer.apply({PARAMS: weights}, X)
  want = X
  for _ in range(2):
    want = reference.layer(want, weights['x_layers_0'], True)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_layers_may_share_a_part():
  tpls = _tpls(8, 8)
  tpls[1].tr_atten_tpl = tpls[0].tr_atten_tpl
  weights = reference.random_weights(_own(2, tpls).Instantiate(), X)
  assert 'self_attention' in weights['x_layers_0']
  assert 'self_attention' not in weights['x_layers_1']


def test_layers_that_are_computed_again_cannot_share_a_part():
  tpls = _tpls(8, 8)
  tpls[1].tr_atten_tpl = tpls[0].tr_atten_tpl
  with pytest.raises(
    errors.UserError, match='share one config of DotProductAttention'
  ):
    reference.random_weights(_own(2, tpls, **REMAT).Instantiate(), X)


@pytest.mark.parametrize(
  ('make', 'field'),
  [
    (_stack, 'dropout_prob'),
    (_stack, 'atten_dropout_prob'),
    (_stack, 'residual_dropout_prob'),
    (_stack, 'relu_dropout_prob'),
    (_stack, 'input_dropout_prob'),
    (_repeated, 'dropout_prob'),
  ],
)
def test_dropout_acts_in_training_only(make, field):
  plain, dropping = (make(1, **f).Instantiate() for f in ({}, {field: 0.5}))
  weights = {PARAMS: reference.random_weights(plain, X)}
  want = plain.apply(weights, X)
  rngs = {RANDOM: jax.random.key(0)}
  assert not np.allclose(dropping.apply(weights, X, rngs=rngs), want)
  with base_layer.eval_mode():
    np.testing.assert_array_equal(dropping.apply(weights, X), want)


def test_a_rate_of_its_own_comes_before_the_common_one():
  config = _stack(
    1, dropout_prob=0.5, atten_dropout_prob=0.0, relu_dropout_prob=0.25
  )
  layer = config.Instantiate().bind({}, rngs={})
  (tpl,) = layer._templates()
  fields = layer._layer_fields(0, tpl)
  assert fields['residual_dropout_prob'] == 0.5
  assert fields['atten_dropout_prob'] == 0.0
  assert fields['relu_dropout_prob'] == 0.25


def test_droppath_rises_from_layer_to_layer():
  layer = _stack(4, residual_droppath_prob=0.8).Instantiate()
  x = np.repeat(X[:1], 200, axis=0)
  weights = reference.random_weights(layer, x)
  # Without weights a layer adds its biases only: another one for each layer.
  weights = jax.tree.map(np.zeros_like, weights)
  for i in range(4):
    post = weights[f'x_layers_{i}']['self_attention']['post']
    post['b'] = post['b'] + np.eye(4, dtype=np.float32)[i]
  rngs = {RANDOM: jax.random.key(0)}
  y = layer.apply({PARAMS: weights}, x, rngs=rngs)
  kept = np.abs(np.asarray(y - x)[:, 0]) > 1e-3
  np.testing.assert_allclose(kept.mean(0), [1.0, 0.8, 0.6, 0.4], atol=0.1)


def test_droppath_that_rises_cannot_be_repeated():
  with pytest.raises(
    errors.UserError, match='block.residual_droppath_prob differs'
  ):
    _repeated(residual_droppath_prob=0.5).Instantiate().init(
      jax.random.key(0), X
    )


def test_repeated_layers_hand_on_what_the_model_says():
  config = StackedTransformerRepeated.config(
    block=StackedTransformer.config(num_layers=1, hidden_dims=8, num_heads=2),
    x_times=2,
    model_dims=D,
    mask_self_attention=True,
    use_cross_attention=True,
  )
  layer = config.Instantiate()
  weights = reference.random_weights(layer, X, cross_inputs=CROSS)
  block = weights['repeat']['sub']['x_layers_0']
  assert 'cross_attention' in block
  y = layer.apply({PARAMS: weights}, X, cross_inputs=CROSS)
  want = X
  past = np.tril(np.ones([T, T], bool))
  for i in range(2):
    one = jax.tree.map(operator.itemgetter(i), block)
    want = reference.layer(want, one, past, cross=CROSS)
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_what_is_repeated_cannot_be_shared_with_another_stack():
  class Two(base_layer.BaseLayer):
    def setup(self):
      norm = norm_layers.LayerNorm.config()
      for name in ('first', 'second'):
        tpl = _repeated()
        tpl.block.transformer_layer_params_tpl.ln_tpl = norm
        self.create_child(name, tpl)

    def __call__(self, inputs):
      return self.second(self.first(inputs))

  with pytest.raises(errors.UserError, match='share one config of LayerNorm'):
    Two().init(jax.random.key(0), X)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (
      {'packed_input': True},
      'packed_input is True, but there are no segment_ids',
    ),
    (
      {
        'transformer_layer_params_tpl': Transformer.config(hidden_dims=16),
      },
      'transformer_layer_params_tpl.hidden_dims is 16, but .* sets it to 8',
    ),
    (
      {'remat': True, 'checkpoint_policy': 'save'},
      "unknown checkpoint policy 'save'",
    ),
    ({'use_cross_attention': True}, 'no cross_inputs'),
    ({'local_window_size': (1, 0)}, 'no field .*local_window_size'),
    (
      {'local_window_size': [(1, 0), None]},
      'local_window_size has 2 entries; .*num_layers is 1',
    ),
  ],
)
def test_mistakes_are_named(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _stack(1, **fields).Instantiate().init(jax.random.key(0), X)


def test_packed_sources_need_segment_ids():
  layer = _stack(1, packed_input=True, use_cross_attention=True).Instantiate()
  with pytest.raises(errors.UserError, match='no cross_segment_ids'):
    layer.init(
      jax.random.key(0), X, segment_ids=SEGMENT_IDS, cross_inputs=CROSS
    )


def test_segments_of_the_other_sequence_alone_say_nothing():
  layer = _stack(1, use_cross_attention=True).Instantiate()
  with pytest.raises(
    errors.UserError, match='there are cross_segment_ids, but no segment_ids'
  ):
    layer.init(
      jax.random.key(0),
      X,
      cross_inputs=CROSS,
      cross_segment_ids=np.ones([B, S], int),
    )


@pytest.mark.parametrize('make', [_stack, _repeated])
def test_half_precision_throughout(make):
  layer = make(mask_self_attention=True).set(fprop_dtype=jnp.bfloat16)
  layer = layer.Instantiate()
  weights = {PARAMS: reference.random_weights(layer, X.astype(jnp.bfloat16))}
  y = layer.apply(weights, X.astype(jnp.bfloat16), PADDINGS)
  assert y.dtype == jnp.bfloat16 and jnp.isfinite(y).all()


def test_packed_rows_are_the_same_as_separate_ones():
  tpl = Transformer.config(
    tr_atten_tpl=dot_product.DotProductAttention.config(
      use_rotary_position_emb=True
    )
  )
  layer = _stack(
    2, mask_self_attention=True, transformer_layer_params_tpl=tpl
  ).Instantiate()
  weights = {PARAMS: reference.random_weights(layer, X)}
  packed = layer.apply(
    weights,
    X,
    (SEGMENT_IDS == 0).astype(np.float32),
    segment_ids=SEGMENT_IDS,
    segment_pos=SEGMENT_POS,
  )
  for row, segment in ((0, 1), (0, 2), (1, 1), (1, 2)):
    of_example = SEGMENT_IDS[row] == segment
    alone = layer.apply(weights, X[row, of_example][None])
    np.testing.assert_allclose(
      packed[row, of_example], alone[0], rtol=1e-4, atol=1e-5
    )
