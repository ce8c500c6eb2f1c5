"""Stacks that mix what all layers put out, against the layers themselves.

Shapes: B batch, T time, D model dims, E layers and one more.
"""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers.transformers.transparent_transformers import (
  TransparentTransformer,
)
from tests.pax_compat.layers.naive_attention import random
from tests.pax_compat.layers.step_by_step import decode

B, T, D, LAYERS = 2, 4, 6, 2
E = LAYERS + 1
X = random(B, T, D)


def _config(**fields):
  return TransparentTransformer.config(
    **{
      **dict(model_dims=D, num_layers=LAYERS, hidden_dims=8, num_heads=2),
      **fields,
    }
  )


def _weights(config):
  """Returns random weights of a stack."""
  layer = config.Instantiate()
  shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), X))
  leaves, tree = jax.tree.flatten(base_layer.unbox(shapes)[PARAMS])
  return tree.unflatten(random(*x.shape, seed=i) for i, x in enumerate(leaves))


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'mixing_softmax': False, 'mixing_scale': 3.0},
    {'minimal_share': 0.2, 'mixing_scale': 0.5},
  ],
)
def test_the_output_is_a_mix(fields):
  config = _config(**fields)
  weights = _weights(config)
  stack = config.Instantiate().bind({PARAMS: weights})
  shares = weights['mixing'] * fields.get('mixing_scale', 1.0) + 1 / E
  if fields.get('mixing_softmax', True):
    least = fields.get('minimal_share', 0.0)
    shares = np.exp(shares) / np.exp(shares).sum() * (1 - E * least) + least
  hidden, want = X, shares[0] * X
  for share, layer in zip(shares[1:], stack.x_layers, strict=True):
    hidden, _ = layer(hidden)
    want = want + share * hidden
  np.testing.assert_allclose(stack(X), want, rtol=1e-5, atol=1e-5)


def test_step_by_step():
  config = _config(mask_self_attention=True)
  weights, layer = _weights(config), config.Instantiate()
  whole = layer.apply({PARAMS: weights}, X)
  pieces = decode(layer, weights, X, [1, 2, 1], B, T)
  np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-5)


def test_dropout_of_mixing_weights():
  """At training only; a dropped weight is zero."""
  config = _config(mixing_dropout_prob=0.5, mixing_softmax=False)
  weights, layer = _weights(config), config.Instantiate()
  plain = _config(mixing_softmax=False).Instantiate()
  rngs = {RANDOM: jax.random.key(3)}
  with base_layer.eval_mode(True):
    calm = layer.apply({PARAMS: weights}, X, rngs=rngs)
  np.testing.assert_array_equal(calm, plain.apply({PARAMS: weights}, X))
  drawn = {
    np.asarray(layer.apply({PARAMS: weights}, X, rngs={RANDOM: key})).tobytes()
    for key in jax.random.split(jax.random.key(1), 8)
  }
  assert 1 < len(drawn) <= 2**E


def test_minimal_shares_sum_to_less_than_1():
  layer = _config(minimal_share=0.4).Instantiate()
  with pytest.raises(errors.UserError, match='minimal_share is 0.4'):
    layer.init(jax.random.key(0), X)
