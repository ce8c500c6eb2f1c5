"""Layers around a layer against the same computation written out in numpy.

Shapes: B batch, D dims, X times, E experts.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import AUX_LOSS, PARAMS, RANDOM, WeightHParams
from pax_compat.layers import linears, stochastics
from pax_compat.layers.graph import wrappers

B, D, X = 2, 3, 4
RNG = np.random.default_rng(0)
INPUTS, OTHER = RNG.normal(size=(2, B, D)).astype(np.float32)


class Pair(base_layer.BaseLayer):
  """A layer of two arguments and two outputs, that adds a loss."""

  def setup(self):
    self.create_variable('w', WeightHParams([D, D]))

  def __call__(self, x, y):
    self.add_aux_loss('sum', jnp.sum(x))
    return jnp.tanh(x @ self.theta.w) + y, y * 2


def _init(config, *args):
  layer = config.Instantiate()
  key = jax.random.key(1)
  variables = layer.init_boxed({PARAMS: key, RANDOM: key}, *args)
  return layer, {PARAMS: variables.get(PARAMS, {})}


def _weights(variables) -> dict[str, np.ndarray]:
  found = jax.tree_util.tree_leaves_with_path(
    base_layer.unbox(variables)[PARAMS]
  )
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(x)
    for path, x in found
  }


def test_all_arguments_are_repeated():
  config = wrappers.RepeatAll.config(body=Pair.config(), x_times=X)
  layer, variables = _init(config, INPUTS, OTHER)
  weights = _weights(variables)
  assert list(weights) == ['repeat/sub/main/w']
  x, y = INPUTS, OTHER
  for w in weights['repeat/sub/main/w']:
    x, y = np.tanh(x @ w) + y, y * 2
  got, updated = layer.apply(variables, INPUTS, OTHER, mutable=[AUX_LOSS])
  np.testing.assert_allclose(got[0], x, rtol=1e-5)
  np.testing.assert_allclose(got[1], y, rtol=1e-5)
  assert jax.tree.leaves(updated)


def test_one_argument_is_repeated():
  config = wrappers.RepeatAll.config(
    body=linears.Linear.config(input_dims=D, output_dims=D), x_times=X
  )
  layer, variables = _init(config, INPUTS)
  expected = INPUTS
  for w in _weights(variables)['repeat/sub/main/w']:
    expected = expected @ w
  got = layer.apply(variables, INPUTS)
  np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_stacked_arguments_meet_a_layer_each():
  config = wrappers.ParallelRepeat.config(body=Pair.config(), x_times=X)
  inputs = RNG.normal(size=(X, B, D)).astype(np.float32)
  layer, variables = _init(config, inputs, inputs)
  [w] = _weights(variables).values()
  assert w.shape == (X, D, D) and not np.allclose(w[0], w[1])
  got, updated = layer.apply(variables, inputs, inputs, mutable=[AUX_LOSS])
  expected = np.tanh(np.einsum('xbi,xij->xbj', inputs, w)) + inputs
  np.testing.assert_allclose(got[0], expected, rtol=1e-4)
  np.testing.assert_allclose(got[1], inputs * 2)
  losses, weights = jax.tree.leaves(updated)
  np.testing.assert_array_equal(weights, np.ones(X))
  np.testing.assert_allclose(losses.sum(), inputs.sum(), rtol=1e-4)


def test_stacks_of_weights_are_known_as_such():
  config = wrappers.ParallelRepeat.config(body=Pair.config(), x_times=X)
  inputs = np.zeros([X, B, D], np.float32)
  _, variables = _init(config, inputs, inputs)
  assert variables[PARAMS]['main']['w'].meta.repeat_prefix == (X,)


@pytest.mark.parametrize('nonzeros', [False, True])
def test_weights_are_mixed_by_the_mean_of_the_inputs(nonzeros):
  config = wrappers.SoftCond.config(
    body=linears.FeedForward.config(input_dims=D, output_dims=D),
    num_experts=5,
    cond_dim=D,
    nonzeros_mean=nonzeros,
  )
  inputs = INPUTS.copy()
  inputs[0, 1] = 0
  layer, variables = _init(config, inputs)
  weights = _weights(variables)
  assert weights['main/linear/w'].shape == (5, D, D)
  count = np.count_nonzero(inputs, 0) if nonzeros else B
  mean = inputs.sum(0) / count
  shares = 1 / (1 + np.exp(-mean @ weights['w']))
  w = np.einsum('e,eio->io', shares, weights['main/linear/w'])
  got = layer.apply(variables, inputs)
  np.testing.assert_allclose(got, np.maximum(inputs @ w, 0), rtol=1e-4)


def test_what_is_computed_again_is_the_same():
  """Outputs and gradients are those of the layer alone."""
  ff = linears.FeedForward.config(input_dims=D, output_dims=D)
  config = wrappers.Rematerialize.config(body=ff)
  layer, variables = _init(config, INPUTS)
  variables = base_layer.unbox(variables)

  def loss(call):
    return lambda params: jnp.sum(jnp.square(call(params)))

  def alone(params):
    return ff.Instantiate().apply({PARAMS: params['main']}, INPUTS)

  def again(params):
    return layer.apply({PARAMS: params}, INPUTS)

  found = jax.value_and_grad(loss(again))(variables[PARAMS])
  wanted = jax.value_and_grad(loss(alone))(variables[PARAMS])
  jax.tree.map(np.testing.assert_allclose, found, wanted)
  assert 'nothing_saveable' in str(
    jax.make_jaxpr(jax.grad(loss(again)))(variables[PARAMS])
  )


def test_what_is_computed_again_draws_the_same():
  config = wrappers.Rematerialize.config(
    body=stochastics.Dropout.config(keep_prob=0.5)
  )
  layer, _ = _init(config, INPUTS)

  def total(x):
    outputs = layer.apply({}, x, rngs={RANDOM: jax.random.key(3)})
    return jnp.sum(outputs), outputs

  gradient, outputs = jax.grad(total, has_aux=True)(INPUTS)
  np.testing.assert_allclose(gradient * INPUTS, outputs, rtol=1e-6)


@pytest.mark.parametrize(
  ('cls', 'fields'),
  [
    (wrappers.ParallelRepeat, {'x_times': X}),
    (wrappers.SoftCond, {'num_experts': 2, 'cond_dim': D}),
    (wrappers.Rematerialize, {}),
    (wrappers.RepeatAll, {'x_times': X}),
  ],
)
def test_the_body_is_what_is_split_over_a_mesh(cls, fields):
  config = cls.config(
    body=linears.Linear.config(input_dims=D, output_dims=D),
    activation_split_dims_mapping=cls.ActivationSharding.config(
      out=['data', None]
    ),
    **fields,
  )
  with pytest.raises(errors.UserError, match='has no effect'):
    config.Instantiate().init_boxed(jax.random.key(0), INPUTS)
