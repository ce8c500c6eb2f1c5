"""Pax's protocol: gradients of `ParamWithAux` have the norms of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.base_layer import PARAMS
from pax_compat.ghostnorm import base, embedding, linears

_INPUTS = jax.random.normal(jax.random.key(3), [4, 6, 5])
_IDS = jnp.array([[1, 1, 2], [0, 0, 0], [2, 1, 0], [5, 1, 1]])


@pytest.mark.parametrize(
  'layer,inputs',
  [
    (linears.LinearGhostNorm.config(input_dims=5, output_dims=3), _INPUTS),
    (linears.BiasGhostNorm.config(dims=5), _INPUTS),
    (
      embedding.EmbeddingGhostNorm.config(input_dims=3, num_classes=4),
      _IDS,
    ),
    (
      embedding.EmbeddingGhostNorm.config(
        input_dims=3,
        num_classes=4,
        use_softmax_shared_embedding_shape_weights=True,
      ),
      _IDS,
    ),
  ],
)
def test_gradients_are_weighted_and_have_squares_of_norms(layer, inputs):
  layer = layer.Instantiate()
  weights = layer.init(jax.random.key(1), inputs)
  scales = jnp.array([1.0, 0.5, 0.0, 2.0])

  def loss(weights, inputs):
    outputs = layer.apply(weights, inputs)
    return jnp.sum(jnp.sin(outputs + 1)) / len(inputs)

  whole = jax.tree.map(lambda x: base.ParamWithAux(x, scales), weights)
  assert base.get_aux(whole) is scales and base.get_aux(weights) is None
  found = jax.grad(loss)(whole, inputs)
  rows = jax.vmap(jax.grad(loss), (None, 0))(weights, inputs[:, None])
  [name] = weights[PARAMS]
  gradient, own = found[PARAMS][name], rows[PARAMS][name]
  expected = jnp.einsum('b,b...->b...', scales, own)
  np.testing.assert_allclose(
    gradient.param, jnp.mean(expected, 0), rtol=1e-5, atol=1e-6
  )
  squares = jnp.sum(jnp.square(expected).reshape(4, -1), axis=1)
  np.testing.assert_allclose(gradient.aux, squares, rtol=1e-5)
  np.testing.assert_array_equal(
    layer.apply(whole, inputs), layer.apply(weights, inputs)
  )


def test_params_are_cast_and_transposed():
  param = base.ParamWithAux(jnp.ones([2, 3]), jnp.ones([4]))
  assert param.transpose().param.shape == (3, 2)
  cast = param.astype(jnp.bfloat16)
  assert cast.dtype == cast.aux.dtype == jnp.bfloat16
  assert base.get_param({'w': param, 'b': 1})['w'] is param.param
