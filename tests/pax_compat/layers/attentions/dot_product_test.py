"""The attention layer against a loop in numpy.

Shapes: B batch, T target time, S source time, D model dims, N heads, H dims of
a head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers import stochastics
from pax_compat.layers.attentions import (
  attention_masks,
  dot_product,
  relative_bias,
)
from pax_compat.layers.attentions.attention_masks import (
  CAUSAL,
  AttentionMask,
)
from pax_compat.layers.normalizations import norm_layers
from tests.pax_compat.layers import naive_attention
from tests.pax_compat.layers.naive_attention import random

B, T, D, N, H = 2, 5, 6, 2, 4


def _config(**fields):
  return dot_product.DotProductAttention.config(
    input_dim=D, hidden_dim=N * H, num_heads=N, **fields
  )


def _weights(config):
  return naive_attention.weights_of(config, D)


def _assert_near(got, want):
  np.testing.assert_allclose(got, want, rtol=2e-5, atol=5e-5)


PADDINGS = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], np.float32)
# Two examples in the first row, one and padding in the second.
SEGMENTS = np.array([[1, 1, 1, 2, 2], [1, 1, 1, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 0, 1], [0, 1, 2, 0, 1]])


def _relative_bias(**fields):
  # So few buckets that some are shared.
  return relative_bias.RelativeBias.config(
    relative_attention_num_buckets=4,
    relative_attention_max_distance=4,
    **fields,
  )


FIELDS = {
  'scaled by the root': {'internal_enable_per_dim_scale': False},
  'scaled by dim': {},
  'not scaled': {'internal_enable_query_scale': False},
  'logits scaled': {'scale_logits_by_head_dims': True, 'atten_logit_cap': 2.0},
  'capped': {'atten_logit_cap': 2.0},
  'extra logit': {'attention_extra_logit': 0.5},
  'no biases': {'use_bias': False},
  'rotary': {'use_rotary_position_emb': True},
  'relative bias': {'relative_bias_tpl': _relative_bias()},
  'scaled bias': {
    'relative_bias_tpl': _relative_bias(),
    'scale_logits_by_head_dims': True,
  },
  'convolved': {'dconv_qkv': True},
}


def _compute_as_on(backend, monkeypatch):
  """Lets layers choose how to attend as they do on that backend."""
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)


backends = pytest.mark.parametrize('backend', ['cpu', 'gpu'])


@backends
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('fields', FIELDS.values(), ids=FIELDS)
def test_against_a_loop(fields, causal, backend, monkeypatch):
  _compute_as_on(backend, monkeypatch)
  config = _config(**fields)
  weights = _weights(config)
  x = random(B, T, D, seed=30)
  mask = attention_masks.padding_mask(PADDINGS)
  y = config.Instantiate().apply(
    {PARAMS: weights}, x, x, x, atten_mask=AttentionMask(mask, causal=causal)
  )[0]
  want = naive_attention.layer(
    weights, x, x, x, mask=mask, causal=causal, farthest=4, **fields
  )
  _assert_near(y, want)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('name', ['scaled by dim', 'rotary', 'convolved'])
def test_packed_examples_do_not_see_each_other(name, causal):
  fields = FIELDS[name]
  config = _config(**fields)
  weights, layer = _weights(config), config.Instantiate()
  x = random(B, T, D, seed=30)
  packed = layer.apply(
    {PARAMS: weights},
    *(x, x, x),
    query_segment_pos=jnp.asarray(POSITIONS),
    key_segment_pos=jnp.asarray(POSITIONS),
    atten_mask=AttentionMask(
      attention_masks.segment_mask(SEGMENTS), causal=causal
    ),
  )[0]
  for row, start, stop in ((0, 0, 3), (0, 3, 5), (1, 0, 3)):
    alone = x[row : row + 1, start:stop]
    want = naive_attention.layer(
      weights, alone, alone, alone, causal=causal, **fields
    )
    _assert_near(packed[row, start:stop], want[0])


@pytest.mark.parametrize('use_length', [False, True])
def test_relative_bias_of_packed_examples(use_length):
  tpl = _relative_bias(use_length_as_position=use_length)
  config = _config(relative_bias_tpl=tpl)
  weights = _weights(config)
  x = random(B, T, D, seed=30)
  mask = attention_masks.segment_mask(SEGMENTS)
  y = config.Instantiate().apply(
    {PARAMS: weights},
    *(x, x, x),
    query_segment_pos=jnp.asarray(POSITIONS),
    key_segment_pos=jnp.asarray(POSITIONS),
    atten_mask=mask,
  )[0]
  want = naive_attention.layer(
    weights, x, x, x, mask=mask, positions=(POSITIONS, POSITIONS), farthest=4
  )
  _assert_near(y, want)


@backends
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('name', ['capped', 'rotary', 'relative bias'])
@pytest.mark.parametrize(('targets', 'sources'), [(3, 5), (5, 3)])
def test_sources_of_another_length(
  targets, sources, name, causal, backend, monkeypatch
):
  _compute_as_on(backend, monkeypatch)
  fields = FIELDS[name]
  config = _config(**fields)
  weights = _weights(config)
  query = random(B, targets, D, seed=1)
  key, value = (random(B, sources, D, seed=seed) for seed in (2, 3))
  y = config.Instantiate().apply(
    {PARAMS: weights},
    query,
    key,
    value,
    atten_mask=AttentionMask(causal=causal),
  )[0]
  want = naive_attention.layer(
    weights, query, key, value, causal=causal, farthest=4, **fields
  )
  _assert_near(y, want)


def test_queries_keys_and_values_of_different_dims():
  dims = {'query': 3, 'key': 4, 'value': 5}
  config = _config().set(input_dim=dims)
  inputs = [
    random(B, length, dims[name], seed=i)
    for i, (name, length) in enumerate((('query', 2), ('key', 7), ('value', 7)))
  ]
  layer = config.Instantiate()
  (y, _), variables = layer.init_with_output(
    {PARAMS: jax.random.key(0)}, *inputs
  )
  weights = base_layer.unbox(variables)[PARAMS]
  shapes = {
    name: weights[name]['w'].shape for name in ('query', 'key', 'value', 'post')
  }
  assert shapes == {
    name: (dims.get(name, dims['query']), N, H) for name in shapes
  }
  weights = jax.tree.map(np.asarray, weights)
  _assert_near(y, naive_attention.layer(weights, *inputs))


def test_heads_of_any_dims():
  fields = dict(dim_per_head=3, internal_enable_per_dim_scale=False)
  x = random(B, T, D)

  def run(**more):
    config = _config(**fields, **more)
    weights = _weights(config)
    assert weights['query']['w'].shape == (D, N, 3)
    y = config.Instantiate().apply({PARAMS: weights}, x, x, x)[0]
    return y, weights

  y, weights = run(scale_query_by_dim_per_head=True)
  _assert_near(y, naive_attention.layer(weights, x, x, x))
  # Unless it is asked for, what scales are the heads of hidden_dim, 4 of dims.
  y, weights = run()
  query = {k: v * np.sqrt(3 / 4) for k, v in weights['query'].items()}
  _assert_near(y, naive_attention.layer({**weights, 'query': query}, x, x, x))


@pytest.mark.parametrize('use_bias', [False, True])
def test_one_weight_for_all_equals_three(use_bias):
  config = _config(combine_qkv=True, use_bias=use_bias)
  weights = _weights(config)
  x = random(B, T, D, seed=30)
  got = config.Instantiate().apply(
    {PARAMS: weights}, x, x, x, atten_mask=CAUSAL
  )[0]
  combined = weights.pop('combined_qkv')
  for i, name in enumerate(('query', 'key', 'value')):
    weights[name] = {k: v[i] for k, v in combined.items()}
  apart = _config(use_bias=use_bias).Instantiate()
  want = apart.apply({PARAMS: weights}, x, x, x, atten_mask=CAUSAL)[0]
  _assert_near(got, want)
  with pytest.raises(
    errors.UserError, match='combine_qkv is for self attention'
  ):
    config.Instantiate().apply({PARAMS: weights}, x, x + 1, x)[0]


def test_an_output_projection_of_another_shape():
  config = _config(output_proj_use_nhd_shape=True)
  weights = _weights(config)
  assert weights['post']['w'].shape == (N, H, D)
  x = random(B, T, D, seed=30)
  y = config.Instantiate().apply({PARAMS: weights}, x, x, x)[0]
  weights['post']['w'] = np.moveaxis(weights['post']['w'], -1, 0)
  _assert_near(y, naive_attention.layer(weights, x, x, x))


def test_normalised_queries_and_keys():
  config = _config(ln_tpl=norm_layers.LayerNorm.config())
  weights = _weights(config)
  x = random(B, T, D, seed=30)
  # With one source, logits do not matter; with these they are all that does.
  y = config.Instantiate().apply({PARAMS: weights}, x, x, x)[0]

  def normalised(name, heads):
    mean, deviation = (
      reduce(heads, axis=-1, keepdims=True) for reduce in (np.mean, np.std)
    )
    norm = weights[f'layer_norm_{name[0]}']
    # The layer's scale is counted from 1.
    return (heads - mean) / deviation * (1 + norm['scale']) + norm['bias']

  query, key = (
    normalised(name, naive_attention.project(weights[name], np.float64(x)))
    for name in ('query', 'key')
  )
  value = naive_attention.project(weights['value'], np.float64(x))
  learned = np.float64(weights['per_dim_scale']['per_dim_scale'])
  query = query * np.log1p(np.exp(learned)) / np.log(2) / np.sqrt(H)
  encoded = naive_attention.attend(
    query, key, value, np.ones((B, N, T, T), bool)
  )
  want = np.einsum('btnh,dnh->btd', encoded, weights['post']['w'])
  np.testing.assert_allclose(
    y, want + weights['post']['b'], rtol=1e-3, atol=1e-3
  )


@backends
@pytest.mark.parametrize('cap', [0.0, 2.0])
@pytest.mark.parametrize('causal', [False, True])
def test_what_sees_nothing_is_zero_if_asked_for(
  causal, cap, backend, monkeypatch
):
  _compute_as_on(backend, monkeypatch)
  config = _config(zero_fully_masked=True, atten_logit_cap=cap, use_bias=False)
  weights = _weights(config)
  x = random(B, T, D, seed=30)
  # The first source is hidden, so if causal the first target sees nothing; the
  # second example sees nothing either way.
  paddings = np.array([[1, 0, 0, 0, 0], [1] * T], np.float32)
  mask = attention_masks.padding_mask(paddings)
  y = config.Instantiate().apply(
    {PARAMS: weights}, x, x, x, atten_mask=AttentionMask(mask, causal=causal)
  )[0]
  np.testing.assert_array_equal(y[1], 0)
  assert (np.abs(y[0]).max(axis=-1) > 0).tolist() == [not causal] + [True] * 4
  want = naive_attention.layer(
    weights, x, x, x, mask=mask, causal=causal, atten_logit_cap=cap
  )
  _assert_near(y, want)


@pytest.mark.parametrize('name', ['scaled by dim', 'rotary', 'relative bias'])
def test_gradients_against_attention_as_its_formula(name):
  fields = FIELDS[name]
  config = _config(**fields)
  weights, layer = _weights(config), config.Instantiate()
  x = random(B, T, D, seed=30)

  def loss(weights, x, step=None):
    y = layer.apply({PARAMS: weights}, x, x, x, atten_mask=CAUSAL)[0]
    return jnp.sum(y**2)

  grads = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, x)

  def naive_loss(weights, x):
    y = naive_attention.layer(
      weights, x, x, x, causal=True, farthest=4, **fields
    )
    return np.sum(y**2)

  # Along a random direction, by central differences in float64.
  direction = jax.tree.map(
    lambda w: np.float64(random(*w.shape, seed=99)), (weights, x)
  )

  def moved(by):
    return jax.tree.map(
      lambda w, d: np.float64(w) + by * d, (weights, x), direction
    )

  want = (naive_loss(*moved(1e-5)) - naive_loss(*moved(-1e-5))) / 2e-5
  products = jax.tree.map(lambda g, d: np.sum(g * d), grads, direction)
  np.testing.assert_allclose(sum(jax.tree.leaves(products)), want, rtol=1e-3)


class _DropsNothing(stochastics.Dropout):
  """Dropout that counts itself as on and drops nothing."""

  def __call__(self, inputs):
    return inputs


@pytest.mark.parametrize('causal', [False, True])
def test_dropout_changes_only_what_is_dropped(causal, monkeypatch):
  _compute_as_on('gpu', monkeypatch)
  weights = _weights(_config())
  x = random(B, T, D)
  mask = attention_masks.padding_mask(PADDINGS)
  by_parts = _config(
    atten_dropout_prob=0.5, dropout_tpl=_DropsNothing.config()
  ).Instantiate()

  def run(layer, x):
    return layer.apply(
      {PARAMS: weights}, x, x, x, atten_mask=AttentionMask(mask, causal=causal)
    )[0]

  fused = run(_config().Instantiate(), x)
  np.testing.assert_allclose(run(by_parts, x), fused, rtol=2e-5, atol=2e-5)
  with base_layer.eval_mode():
    np.testing.assert_array_equal(run(by_parts, x), fused)


@pytest.mark.parametrize(
  'fields',
  [
    {'atten_dropout_prob': 0.25},
    {'dropout_tpl': stochastics.Dropout.config(keep_prob=0.75)},
  ],
)
def test_dropped_weights_are_zero_and_the_others_scaled_up(fields):
  # One source of weight 1, the identity as projections: the output is the
  # value times 0 or 1 / keep_prob, for each target and head.
  layer = dot_product.DotProductAttention.config(
    input_dim=1,
    hidden_dim=1,
    num_heads=1,
    use_bias=False,
    internal_enable_per_dim_scale=False,
    **fields,
  ).Instantiate()
  weights = {n: {'w': np.ones([1, 1, 1])} for n in ('query', 'key', 'value')}
  weights['post'] = {'w': np.ones([1, 1, 1])}
  y = layer.apply(
    {PARAMS: weights},
    np.ones([50, 40, 1], np.float32),
    *(np.full([50, 1, 1], 3, np.float32),) * 2,
    rngs={RANDOM: jax.random.key(0)},
  )[0]
  dropped = np.asarray(y) == 0
  np.testing.assert_allclose(y[~dropped], 4.0, rtol=1e-6)
  # The share of 2000 draws has a standard error of 1%.
  assert abs(dropped.mean() - 0.25) < 0.05


def test_weights_may_be_dropped_together():
  # Longer than a block of targets.
  length = 100
  tpl = stochastics.Dropout.config(noise_shape_broadcast_dims=[1, 2])
  config = _config(
    atten_dropout_prob=0.5, dropout_tpl=tpl, internal_enable_query_scale=False
  )
  weights = jax.tree.map(np.zeros_like, _weights(config))
  # Logits of zero and values of one: the share of the sources that stay, which
  # are the same for all targets and heads.
  weights['value']['b'] = np.ones((N, H), np.float32)
  weights['post']['w'] = random(D, N, H)
  x = random(1, length, D)

  def run(causal):
    return config.Instantiate().apply(
      {PARAMS: weights},
      x,
      x,
      x,
      rngs={RANDOM: jax.random.key(0)},
      atten_mask=AttentionMask(causal=causal),
    )[0]

  y = run(causal=False)
  np.testing.assert_allclose(y, np.broadcast_to(y[:, :1], y.shape), rtol=1e-5)
  total = np.cumsum(np.ones(length))
  kept = np.asarray(run(causal=True)[0, :, 0]) * total
  # The target sees one source more than the one before, dropped or doubled.
  steps = np.diff(kept, prepend=0.0) / weights['post']['w'][0].sum()
  assert set(np.round(steps, 2)) == {0.0, 2.0}


def test_weights_may_be_dropped_at_evaluation():
  tpl = stochastics.Dropout.config(keep_prob=0.5, dropout_at_eval=True)
  config = _config(dropout_tpl=tpl)
  weights, x = _weights(config), random(B, T, D)
  with base_layer.eval_mode():
    one, other = (
      config.Instantiate().apply(
        {PARAMS: weights}, x, x, x, rngs={RANDOM: jax.random.key(seed)}
      )[0]
      for seed in (0, 1)
    )
  assert np.abs(one - other).max() > 0.1


@pytest.mark.parametrize('cast', [False, True])
@pytest.mark.parametrize('name', ['scaled by dim', 'rotary', 'capped'])
def test_bfloat16(name, cast):
  config = _config(cast_rotary_position_emb=cast, **FIELDS[name])
  weights = _weights(config)
  x = random(B, T, D, seed=30)

  def run(config, x):
    return config.Instantiate().apply(
      {PARAMS: weights}, x, x, x, atten_mask=CAUSAL
    )[0]

  want = run(config, x)
  y = run(config.clone().set(fprop_dtype=jnp.bfloat16), jnp.bfloat16(x))
  assert y.dtype == jnp.bfloat16
  error = np.linalg.norm(np.asarray(y, np.float32) - want)
  assert error < 0.03 * np.linalg.norm(want)


def test_gshard_starts_the_projections_by_their_dims():
  dims, heads, per_head = 64, 8, 32
  layer = dot_product.DotProductAttention.config(
    input_dim=dims,
    hidden_dim=heads * per_head,
    num_heads=heads,
    internal_gshard_gaussian_init=True,
  ).Instantiate()
  x = jnp.zeros((1, 1, dims))
  weights = base_layer.unbox(
    layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x)
  )
  for name, variance in (
    ('query', 1 / (dims * per_head)),
    ('key', 1 / dims),
    ('value', 1 / dims),
    ('post', 1 / (heads * per_head)),
  ):
    deviation = np.std(weights[PARAMS][name]['w'])
    np.testing.assert_allclose(deviation, variance**0.5, rtol=0.05)


def test_projections_of_one_template_have_weights_of_their_own():
  x = jnp.zeros((1, 1, D))
  config = _config(dconv_qkv=True, ln_tpl=norm_layers.RmsNorm.config())
  variables = config.Instantiate().init_boxed(
    {PARAMS: jax.random.key(0)}, x, x, x
  )
  assert set(variables[PARAMS]) == {
    *('query', 'key', 'value', 'post', 'per_dim_scale'),
    *('dconv_q', 'dconv_k', 'dconv_v', 'layer_norm_q', 'layer_norm_k'),
  }


def test_how_the_weights_are_split():
  config = _config(dconv_qkv=True, output_proj_use_nhd_shape=True)
  config.weight_split_dims_mapping.proj = ['x', 'y', None]
  config.weight_split_dims_mapping.dconv = ['y', None]
  x = jnp.zeros((1, 1, D))
  variables = config.Instantiate().init_boxed(
    {PARAMS: jax.random.key(0)}, x, x, x
  )

  def mapping(name, weight):
    box = variables[PARAMS][name][weight]
    return box.meta.tensor_split_dims_mapping

  for name in ('query', 'key', 'value'):
    assert mapping(name, 'w') == ['x', 'y', None]
    assert mapping(name, 'b') == ['y', None]
  assert mapping('post', 'w') == ['y', None, 'x']
  assert mapping('post', 'b') == ['x']
  assert mapping('dconv_k', 'dconv_0') == ['y', None]


def test_how_the_activations_are_split():
  mesh = naive_attention.abstract_mesh(x=2, y=2)
  config = _config()
  config.activation_split_dims_mapping.set(
    blnh=['x', None, 'y', None], bld=['x', None, None]
  )
  weights = _weights(config)
  x = jnp.zeros((B, T, D))
  specs = naive_attention.splits(
    lambda x: config.Instantiate().apply({PARAMS: weights}, x, x, x)[0], mesh, x
  )
  heads = ('x', None, 'y', None)
  assert [spec for _, spec in specs] == [heads] * 4 + [('x', None, None)]


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'hidden_dim': 7}, 'hidden_dim is 7; .*multiple of num_heads, 2'),
    (
      {'input_dim': {'query': 3, 'key': 4}},
      r"input_dim has \['key', 'query'\]; expected \['key', 'query', 'value'",
    ),
    (
      {'ngrammer_tpl': stochastics.Dropout.config()},
      'ngrammer_tpl is a Dropout; expected a VQNgrammer',
    ),
    (
      {
        'combine_qkv': True,
        'input_dim': {'query': D, 'key': D, 'value': D + 1},
      },
      'combine_qkv: queries, keys and values share one weight',
    ),
    (
      {'combine_qkv': True, 'internal_gshard_gaussian_init': True},
      'combine_qkv: internal_gshard_gaussian_init',
    ),
    (
      {'proj_tpl': dot_product.AttentionProjection.config(use_bias=False)},
      'proj_tpl.use_bias is False, but .* sets it to True',
    ),
  ],
)
def test_settings_that_do_not_go_together(fields, message):
  x = jnp.zeros((B, T, D))
  layer = _config().set(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x)


@pytest.mark.parametrize(
  'mask', [np.zeros((B, 1, 1, T), np.int32), np.ones((B, T), bool)]
)
def test_masks_are_boolean_or_additive_and_of_four_dimensions(mask):
  x = jnp.zeros((B, T, D))
  layer = _config().Instantiate()
  with pytest.raises(errors.UserError, match='the mask is .*expected booleans'):
    layer.init_boxed({PARAMS: jax.random.key(0)}, x, x, x, mask)


@pytest.mark.parametrize('causal', [False, True])
def test_an_additive_mask_hides_what_the_structure_hides(causal):
  config = _config()
  weights, layer = _weights(config), config.Instantiate()
  x = random(B, T, D, seed=30)
  ids = jnp.asarray(SEGMENTS)
  mask = AttentionMask(attention_masks.SegmentMask(ids, ids), causal=causal)
  want, probs = layer.apply({PARAMS: weights}, x, x, x, mask)
  assert probs is None
  for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    got, _ = layer.apply({PARAMS: weights}, x, x, x, mask.additive(T, T, dtype))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_no_cap_is_a_cap_of_zero():
  x = random(B, T, D)
  outputs = []
  for cap in (None, 0.0):
    layer = dot_product.DotProductAttention.config(
      input_dim=D, hidden_dim=N * H, num_heads=N, atten_logit_cap=cap
    ).Instantiate()
    variables = layer.init({PARAMS: jax.random.key(0)}, x, x, x)
    outputs.append(layer.apply(variables, x, x, x)[0])
  np.testing.assert_array_equal(outputs[0], outputs[1])
