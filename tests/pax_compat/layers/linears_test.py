"""Linear layers against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, WeightInit
from pax_compat.layers import activations, linears

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
W = RNG.normal(size=(4, 5)).astype(np.float32)
B = RNG.normal(size=(5,)).astype(np.float32)
WEIGHTS = {PARAMS: {'linear': {'w': W}, 'bias': {'b': B}}}


def _config(**fields):
  return linears.FeedForward.config(input_dims=4, output_dims=5, **fields)


def _boxes(config):
  return config.Instantiate().init_boxed({PARAMS: jax.random.key(0)}, X)[PARAMS]


def _splits(boxes):
  """Returns how weights are split, by path."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): (
      box.meta.tensor_split_dims_mapping
    )
    for path, box in jax.tree_util.tree_leaves_with_path(
      boxes, is_leaf=base_layer.is_boxed
    )
  }


def _split(*mapping):
  return linears.FeedForward.WeightSharding.config(wt=mapping)


def test_feed_forward():
  config = _config(activation_tpl=activations.Tanh.config())
  y = config.Instantiate().apply(WEIGHTS, X)
  want = np.tanh(np.tensordot(X, W, axes=1) + B)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_gradients():
  config = _config(activation_tpl=activations.Identity.config())
  layer = config.Instantiate()
  g = RNG.normal(size=(2, 3, 5)).astype(np.float32)
  by_weights, by_x = jax.grad(
    lambda v, x: jnp.sum(layer.apply(v, x) * g), (0, 1)
  )(WEIGHTS, X)
  by_weights = by_weights[PARAMS]
  np.testing.assert_allclose(
    by_weights['linear']['w'], np.tensordot(X, g, ((0, 1), (0, 1))), rtol=1e-4
  )
  np.testing.assert_allclose(by_weights['bias']['b'], g.sum((0, 1)), rtol=1e-4)
  np.testing.assert_allclose(by_x, g @ W.T, rtol=1e-4, atol=1e-5)


def test_the_activation_is_relu_unless_said():
  y = (
    _config(has_bias=False)
    .Instantiate()
    .apply({PARAMS: {'linear': {'w': W}}}, X)
  )
  want = np.maximum(np.tensordot(X, W, axes=1), 0)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_weights_as_declared():
  boxes = _boxes(
    _config(bias_init=0.5, weight_split_dims_mapping=_split('data', 'mdl'))
  )
  assert boxes['linear']['w'].value.shape == (4, 5)
  np.testing.assert_array_equal(boxes['bias']['b'].value, np.full(5, 0.5))
  assert _splits(boxes) == {'bias/b': ('mdl',), 'linear/w': ('data', 'mdl')}
  assert set(_boxes(_config(has_bias=False))) == {'linear'}


def test_the_first_value_of_the_matrix():
  for config, want in (
    (_config(weight_init=WeightInit.Constant(2.0)), 2.0),
    (_config(params_init=WeightInit.Constant(3.0)), 3.0),
    (
      _config(
        weight_init=WeightInit.Constant(2.0),
        params_init=WeightInit.Constant(3.0),
      ),
      2.0,
    ),
  ):
    boxes = _boxes(config)
    np.testing.assert_array_equal(
      boxes['linear']['w'].value, np.full_like(W, want)
    )
    np.testing.assert_array_equal(boxes['bias']['b'].value, np.zeros(5))


def test_what_the_layer_leaves_open_is_as_in_its_templates():
  bias = linears.Bias.config(bias_init=0.5)
  boxes = _boxes(_config(bias_tpl=bias))
  np.testing.assert_array_equal(boxes['bias']['b'].value, np.full(5, 0.5))
  with pytest.raises(errors.UserError, match='bias_tpl.bias_init is 0.5'):
    _boxes(_config(bias_tpl=bias, bias_init=1.0))


def test_a_checkpoint_policy_finds_the_projection_by_name():
  layer = _config(checkpoint_str='projection').Instantiate()

  def loss(policy):
    apply = jax.checkpoint(
      lambda w: jnp.sum(layer.apply({PARAMS: w}, X)), policy=policy
    )
    return jax.make_jaxpr(jax.grad(apply))(WEIGHTS[PARAMS])

  policies = jax.checkpoint_policies
  # Saved, the product is not computed a second time.
  saved = loss(policies.save_only_these_names('projection'))
  again = loss(policies.nothing_saveable)
  assert str(saved).count('dot_general') == str(again).count('dot_general') - 1


def test_computes_in_the_dtype_of_the_computation():
  config = _config(fprop_dtype=jnp.bfloat16)
  boxes = base_layer.unbox(_boxes(config))
  assert boxes['linear']['w'].dtype == jnp.float32
  y = config.Instantiate().apply({PARAMS: boxes}, X.astype(jnp.bfloat16))
  assert y.dtype == jnp.bfloat16


def test_dims_are_required():
  with pytest.raises(errors.UserError, match='output_dims is required'):
    linears.Linear.config(input_dims=1).Instantiate()


@pytest.mark.parametrize('activate_final', [True, False])
def test_mlp_block(activate_final):
  layer = linears.MLPBlock.config(
    num_layers=3,
    hidden_dims=6,
    activate_final=activate_final,
    ff_tpl=_config(),
    weight_split_dims_mapping=_split('data', 'mdl'),
  ).Instantiate()
  boxes = layer.init_boxed(jax.random.key(0), X)[PARAMS]
  weights = base_layer.unbox(boxes)
  h = X
  for i, shape in enumerate([(4, 6), (6, 6), (6, 5)]):
    w = weights[f'mlp_layers_{i}']['linear']['w']
    assert w.shape == shape
    h = np.tensordot(h, w, axes=1)
    if i < 2 or activate_final:
      h = np.maximum(h, 0)
  np.testing.assert_allclose(
    layer.apply({PARAMS: weights}, X), h, rtol=1e-4, atol=1e-6
  )
  assert set(_splits(boxes).values()) == {('data', 'mdl'), ('mdl',)}


def test_an_mlp_block_of_one_layer_and_of_none():
  layer = linears.MLPBlock.config(num_layers=1, ff_tpl=_config()).Instantiate()
  y = layer.apply({PARAMS: {'mlp_layers_0': WEIGHTS[PARAMS]}}, X)
  want = np.maximum(np.tensordot(X, W, axes=1) + B, 0)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
  with pytest.raises(errors.UserError, match='num_layers is 0; .*1 or more'):
    linears.MLPBlock.config(
      num_layers=0, ff_tpl=_config()
    ).Instantiate().init_boxed(jax.random.key(0), X)


def test_an_mlp_block_needs_the_dims_of_its_ends():
  config = linears.MLPBlock.config(
    ff_tpl=linears.FeedForward.config(input_dims=4)
  )
  with pytest.raises(errors.UserError, match='output_dims is required'):
    config.Instantiate().init_boxed(jax.random.key(0), X)
