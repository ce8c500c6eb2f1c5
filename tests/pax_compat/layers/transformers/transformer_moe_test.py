"""The mixture of experts against its formula.

Shapes: B batch, T time, M model dims, H dims of the inner layer, E experts, G
groups of tokens, S tokens of a group.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import (
  AUX_LOSS,
  PARAMS,
  RANDOM,
  SUMMARIES,
  AuxLossStruct,
)
from pax_compat.layer_core.weight_init import WeightInit
from pax_compat.layers import activations, stochastics
from pax_compat.layers.transformers.transformer_moe import (
  TransformerFeedForwardMoe,
)
from tests.pax_compat.layers import numpy_experts, numpy_transformer

B, T, M, H, E, G = 2, 12, 8, 6, 4, 3
X = np.random.default_rng(0).normal(size=(B, T, M)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [7]])).astype(np.float32)
POLICIES = ['pre', 'post', 'primer_hybrid', 'post_skip']


def _config(**fields):
  return TransformerFeedForwardMoe.config(
    **{
      **dict(input_dims=M, hidden_dims=H, num_experts=E, num_groups=G),
      **fields,
    }
  )


def _run(config, x=X, paddings=PADDINGS, do_eval=False, **given):
  """Returns the output, the weights, the losses and the summaries."""
  layer = config.Instantiate()
  weights = numpy_transformer.random_weights(layer, x, seed=3)

  @jax.jit
  def apply(weights):
    return layer.apply(
      {PARAMS: weights},
      x,
      paddings,
      rngs={RANDOM: jax.random.key(0)},
      mutable=[AUX_LOSS, SUMMARIES],
      **given,
    )

  with base_layer.eval_mode(do_eval):
    y, updates = apply(weights)
  summaries = {k: v.value for k, v in updates.get(SUMMARIES, {}).items()}
  return y, weights, updates.get(AUX_LOSS, {}), summaries


def test_the_number_of_groups_has_to_be_set():
  config = _config()
  del config.num_groups
  with pytest.raises(errors.UserError, match='num_groups is required'):
    config.Instantiate()
  # None is a value: each row is a group.
  expected = _run(_config(num_groups=len(X)))[0]
  np.testing.assert_array_equal(_run(_config(num_groups=None))[0], expected)


def _grouped(x):
  return x.reshape([G, -1, *x.shape[2:]])


def _experts(x, weights, counts, activation=np.tanh):
  """Returns what experts make of [B, T, M], with their counts [G, S, E]."""
  y = numpy_experts.mixed(_grouped(x), weights, counts, activation)
  return y.reshape(x.shape)


def _close(y, want):
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('gated', [False, True])
@pytest.mark.parametrize('policy', POLICIES)
def test_top2(policy, gated):
  config = _config(
    norm_policy=policy,
    use_gated_activation=gated,
    activation_tpl=activations.Tanh.config(),
    moe_load_balance_loss_weight=0.3,
  )
  y, weights, losses, summaries = _run(config)
  seen = []

  def compute(x):
    logits = _grouped(x @ weights['gate'])
    seen.append(numpy_experts.top2(logits, _grouped(PADDINGS), capacity=4))
    combine, _ = seen[0]
    return _experts(x, weights, combine.sum(-1))

  _close(y, numpy_transformer.residual(X, compute, weights, policy))
  [(combine, loss)] = seen
  name = 'aux_moe_load_balance_loss'
  np.testing.assert_allclose(losses[name].value, 0.3 * loss, rtol=1e-5)
  assert losses[name].weight == 1
  np.testing.assert_allclose(summaries[name], losses[name].value)
  none = (combine == 0).all((2, 3))[_grouped(PADDINGS) == 0]
  np.testing.assert_allclose(summaries['dispatch_0'], none.mean(), rtol=1e-6)


@pytest.mark.parametrize('gating', ['expert_choice', 'expert_choice_v2'])
def test_experts_choose(gating):
  capacity, hidden, fields = 3, PADDINGS, dict(expert_capacity_dim=3)
  if gating == 'expert_choice':
    # Of the eight tokens of a group two for each expert, times 1.5.
    capacity, hidden, fields = 3, np.zeros_like(PADDINGS), {}
  y, weights, losses, _ = _run(
    _config(
      gating_func=gating,
      activation_tpl=activations.Tanh.config(),
      unadjusted_expert_capacity_factor=1.5,
      **fields,
    )
  )

  def compute(x):
    logits = _grouped(x @ weights['gate'])
    counts = numpy_experts.picked_by_experts(logits, _grouped(hidden), capacity)
    return _experts(x, weights, counts) * (1 - PADDINGS[..., None])

  _close(y, numpy_transformer.residual(X, compute, weights, 'pre'))
  assert losses == {'aux_moe_load_balance_loss': AuxLossStruct(0, 1)}


@pytest.mark.parametrize('gated', [False, True])
def test_all_experts_without_slots(gated):
  y, weights, losses, _ = _run(
    _config(
      gating_func='dense_top2',
      use_gated_activation=gated,
      activation_tpl=activations.Tanh.config(),
    )
  )

  def compute(x):
    logits = _grouped(x @ weights['gate'])
    none = np.zeros(logits.shape[:2])
    combine, _ = numpy_experts.top2(logits, none, capacity=100)
    y = _experts(x, weights, combine.sum(-1))
    return y * (1 - PADDINGS[..., None])

  _close(y, numpy_transformer.residual(X, compute, weights, 'pre'))
  assert losses == {'aux_moe_load_balance_loss': AuxLossStruct(0, 1)}


def test_the_gradients_by_finite_differences():
  layer = _config(use_gated_activation=True).Instantiate()
  weights = numpy_transformer.random_weights(layer, X)
  direction = numpy_transformer.random_weights(layer, X, seed=2)

  @jax.jit
  def loss(weights):
    y, updates = layer.apply({PARAMS: weights}, X, PADDINGS, mutable=[AUX_LOSS])
    aux_loss = updates[AUX_LOSS]['aux_moe_load_balance_loss']
    return jnp.sum(jnp.square(y)) + aux_loss.value

  def moved(step):
    w = jax.tree.map(lambda w, d: w + step * d, weights, direction)
    return np.float64(loss(w))

  along = sum(
    np.sum(g * d)
    for g, d in zip(
      jax.tree.leaves(jax.grad(loss)(weights)),
      jax.tree.leaves(direction),
      strict=True,
    )
  )
  by_steps = (moved(1e-3) - moved(-1e-3)) / 2e-3
  np.testing.assert_allclose(along, by_steps, rtol=2e-2)


def test_padding_changes_nothing():
  y, *_ = _run(_config())
  np.testing.assert_array_equal(y[1, 7:], X[1, 7:])
  other = np.where(PADDINGS[..., None] > 0, 7.0, X)
  np.testing.assert_allclose(_run(_config(), other)[0][0], y[0], rtol=1e-6)
  first, *_ = _run(_config(apply_padding_first=True))
  assert not np.any(first[1, 7:])


def test_groups_do_not_see_each_other():
  y, *_ = _run(_config(), paddings=None)
  other = X.copy().reshape([G, -1, M])
  other[1] = other[1][::-1]
  z, *_ = _run(_config(), other.reshape(X.shape), paddings=None)
  y, z = np.asarray(_grouped(y)), np.asarray(_grouped(z))
  np.testing.assert_allclose(z[[0, 2]], y[[0, 2]], rtol=1e-5)
  assert np.abs(z[1] - y[1]).max() > 0.1


def test_rows_as_groups():
  rows, *_ = _run(_config(num_groups=None))
  np.testing.assert_array_equal(rows, _run(_config(num_groups=B))[0])


def test_combined_weights_of_a_gated_layer():
  apart = _config(use_gated_activation=True)
  y, weights, *_ = _run(apart)
  both = [weights[name] for name in ('wi_gate_0', 'wi_0')]
  combined = {k: w for k, w in weights.items() if k != 'wi_gate_0'}
  combined['wi_0'] = np.concatenate(both, -1)
  layer = apart.clone().set(combine_gated_weights=True).Instantiate()
  one = jax.jit(layer.apply)({PARAMS: combined}, X, PADDINGS)
  np.testing.assert_allclose(one, y, rtol=1e-5, atol=1e-5)


def test_the_least_size_of_groups():
  one, *_ = _run(_config(num_groups=1))
  least, *_ = _run(_config(num_groups=8, min_group_size=B * T))
  np.testing.assert_array_equal(least, one)
  large, *_ = _run(_config(min_group_size=B * T // G))
  np.testing.assert_array_equal(large, _run(_config())[0])


def test_second_experts_are_drawn_anew():
  config = _config(second_expert_policy='sampling')
  layer = config.Instantiate()
  weights = {PARAMS: numpy_transformer.random_weights(layer, X)}
  a, b, c = (
    jax.jit(layer.apply)(weights, X, rngs={RANDOM: jax.random.key(seed)})
    for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(a, b)
  assert np.abs(a - c).max() > 0.01


@pytest.mark.parametrize('packed', [False, True])
def test_sentences_go_as_one(packed):
  segment_ids = np.where(PADDINGS > 0, 0, 1 + (np.arange(T) >= 4))
  config = _config(
    num_groups=1,
    moe_gating_embedding_level='sentence',
    unadjusted_expert_capacity_factor=100.0,
    norm_policy='post_skip',
    activation_tpl=activations.Tanh.config(),
  )
  given = dict(segment_ids=segment_ids) if packed else {}
  y, weights, *_ = _run(config, **given)
  means = np.zeros_like(X)
  for b in range(B):
    for n in (1, 2):
      same = (segment_ids[b] == n) if packed else (PADDINGS[b] == 0)
      means[b, same] = X[b, same].mean(0)

  def compute(x):
    logits = (means @ weights['gate']).reshape([1, -1, E])
    combine, _ = numpy_experts.top2(
      logits, PADDINGS.reshape([1, -1]), capacity=1000
    )
    flat = x.reshape([1, -1, M])
    counts = combine.sum(-1)
    return numpy_experts.mixed(flat, weights, counts, np.tanh).reshape(x.shape)

  _close(y, numpy_transformer.residual(X, compute, weights, 'post_skip'))


def test_capped_logits():
  y, weights, *_ = _run(
    _config(gating_logit_cap=0.5, activation_tpl=activations.Tanh.config())
  )
  x = numpy_transformer.norm(X, weights['layer_norm'])
  logits = 0.5 * np.tanh(_grouped(x @ weights['gate']) / 0.5)
  combine, _ = numpy_experts.top2(logits, _grouped(PADDINGS), 4)
  _close(y, X + _experts(x, weights, combine.sum(-1)))


def test_dropout_of_the_inner_layer_and_of_the_residual():
  config = _config(relu_dropout_prob=0.5, residual_dropout_prob=0.5)
  plain, *_ = _run(_config())
  dropped, *_ = _run(config)
  assert np.abs(dropped - plain).max() > 0.1
  np.testing.assert_array_equal(_run(config, do_eval=True)[0], plain)
  always = _config(
    relu_dropout_tpl=stochastics.Dropout.config(
      keep_prob=0.5, dropout_at_eval=True
    )
  )
  assert np.abs(_run(always, do_eval=True)[0] - plain).max() > 0.1


def test_the_residual():
  plain, *_ = _run(_config())
  none, *_ = _run(_config(add_skip_connection=False))
  twice, *_ = _run(_config(residual_weight=2.0))
  np.testing.assert_allclose(none, plain - X, atol=1e-5)
  np.testing.assert_allclose(twice, X + 2 * none, atol=1e-5)
  path, *_ = _run(_config(residual_droppath_prob=0.999, num_groups=1))
  np.testing.assert_array_equal(path, X)


def _first(layer, x):
  return base_layer.unbox(jax.jit(layer.init)(jax.random.key(0), x))[PARAMS]


def test_initial_values():
  layer = _config(
    input_dims=300, hidden_dims=200, use_gated_activation=True
  ).Instantiate()
  x = np.zeros([1, 12, 300], np.float32)
  weights = _first(layer, x)
  for name, fan_in in (
    ('gate', 300),
    ('wi_0', 300),
    ('wi_gate_0', 300),
    ('wo_0', 200),
  ):
    bound = np.sqrt(3 / fan_in)
    w = np.asarray(weights[name], np.float64)
    assert abs(w.mean()) < 4 * bound / np.sqrt(3 * w.size)
    np.testing.assert_allclose(w.std(), 1 / np.sqrt(fan_in), rtol=0.06)
    np.testing.assert_allclose(
      (w**4).mean(), bound**4 / 5, rtol=0.15
    )  # as that of a uniform distribution
    assert 0.99 * bound < np.abs(w).max() <= bound


@pytest.mark.parametrize('explicit', [False, True])
def test_initial_values_by_params_init(explicit):
  layer = _config(
    params_init=WeightInit.Xavier(1.0),
    internal_gshard_variance_scaling_fan_in_init=False,
    explicit_fan_in_fan_out_axes=explicit,
  ).Instantiate()
  weights = _first(layer, X)
  fans = M + H if explicit else E * (M + H)
  for name in ('wi_0', 'wo_0'):
    bound = np.sqrt(6 / fans)
    assert 0.9 * bound < np.abs(weights[name]).max() <= bound


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(gating_func='top_2'), "gating_func is 'top_2'.*top2"),
    (dict(second_expert_policy='rand'), "policy is 'rand'.*random"),
    (dict(moe_gating_embedding_level='word'), "level is 'word'"),
    (dict(num_groups=5), 'makes 5 groups.* are 24 tokens'),
    (dict(num_groups=0), 'num_groups is 0; expected 1 or more'),
    (
      dict(gating_func='dense_top2', second_expert_policy='random'),
      "is for the gating_func 'top2'",
    ),
    (
      dict(gating_func='expert_choice', expert_capacity_dim=3),
      'expert_capacity_dim is 3',
    ),
    (dict(combine_gated_weights=True), 'use_gated_activation is False'),
    (dict(num_experts=0), 'num_experts is 0; expected 1 or more'),
    (
      dict(unadjusted_expert_capacity_factor=0.0),
      'expected expert_capacity_dim',
    ),
    (
      dict(residual_droppath_prob=0.5, add_skip_connection=False),
      'add_skip_connection is False',
    ),
  ],
)
def test_what_cannot_be(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _config(**fields).Instantiate().init_boxed({PARAMS: jax.random.key(0)}, X)


@pytest.mark.parametrize(
  ('name', 'rank', 'gating'),
  [
    ('gsm', 3, 'top2'),
    ('gs', 2, 'top2'),
    ('gsec', 4, 'top2'),
    ('egcm', 4, 'top2'),
    ('egch', 4, 'top2'),
    ('gecm', 4, 'top2'),
    ('gecs', 4, 'expert_choice'),
    ('gec', 3, 'expert_choice'),
  ],
)
def test_no_mapping_of_activations_is_ignored(name, rank, gating):
  mapping = TransformerFeedForwardMoe.ActivationSharding.config(
    **{name: [None] * (rank - 1) + ['nowhere']}
  )
  config = _config(gating_func=gating, activation_split_dims_mapping=mapping)
  mesh = jax.make_mesh(
    (1,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  with jax.set_mesh(mesh):
    with pytest.raises(
      errors.UserError, match="'nowhere', which is not an axis of the mesh"
    ):
      _run(config)


def test_half_precision():
  layer = _config(fprop_dtype=jnp.bfloat16).Instantiate()
  weights = numpy_transformer.random_weights(layer, X, seed=3)
  y, updates = layer.apply(
    {PARAMS: weights}, X.astype(jnp.bfloat16), mutable=[AUX_LOSS]
  )
  assert y.dtype == jnp.bfloat16
  want, _, losses, _ = _run(_config(), paddings=None)
  [loss], [want_loss] = updates[AUX_LOSS].values(), losses.values()
  assert loss.value.dtype == jnp.float32
  np.testing.assert_allclose(loss.value, want_loss.value, rtol=0.05)
  # Single tokens may go elsewhere, as gates that are nearly equal swap places.
  away = np.abs(y.astype(np.float32) - want).max(-1) > 0.1
  assert away.mean() < 0.2
