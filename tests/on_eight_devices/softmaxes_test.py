"""Softmaxes whose vocabulary and batch are split over a mesh."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from pax_compat import base_layer
from pax_compat.layers import embedding_softmax
from pax_compat.layers.softmaxes import vocabulary_loss


@pytest.fixture(name='mesh')
def _mesh():
  return jax.make_mesh((2, 4), ('data', 'mdl'), (AxisType.Auto,) * 2)


@pytest.mark.parametrize('chunk_size', [0, 4])
@pytest.mark.parametrize(
  'cls',
  [
    embedding_softmax.SharedEmbeddingSoftmax,
    embedding_softmax.NClassMajorSharedEmbeddingSoftmax,
  ],
)
def test_a_shared_embedding(mesh, cls, chunk_size):
  """Split by vocabulary and batch, whole or in chunks: as on one device."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(4, 6, 8)).astype('float32')
  ids = rng.integers(0, 16, (4, 6))
  weights = rng.random(size=(4, 6)).astype('float32')
  layer = cls.config(
    input_dims=8,
    num_classes=16,
    chunk_size=chunk_size,
    lookup_style='matmul',
    weight_split_dims_mapping=cls.WeightSharding.config(wt=['data', 'mdl']),
    activation_split_dims_mapping=cls.ActivationSharding.config(
      out=['data', None, 'mdl'],
      emb_out_split_dims_mapping=['data', None, None],
    ),
  ).Instantiate()
  boxed = layer.init_boxed(jax.random.key(0), x, weights, ids)
  plain = base_layer.unbox(boxed)
  placed = jax.tree.map(
    lambda b: jax.device_put(
      b.value, NamedSharding(mesh, P(*b.meta.tensor_split_dims_mapping))
    ),
    boxed,
    is_leaf=base_layer.is_boxed,
  )

  def loss(variables):
    bound = layer.bind(variables)
    vectors = x + bound.emb_lookup(ids)
    return bound(vectors, weights, ids).avg_xent

  want = jax.jit(jax.value_and_grad(loss))(plain)
  with jax.set_mesh(mesh):
    got = jax.jit(jax.value_and_grad(loss))(placed)
  for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_a_chunked_loss(mesh):
  """The numbers are those of one device."""
  rng = np.random.default_rng(0)
  w = rng.normal(size=(4, 32)).astype(np.float32)
  b = rng.normal(size=(32,)).astype(np.float32)
  x = rng.normal(size=(6, 7, 4)).astype(np.float32)
  ids = rng.integers(0, 32, (6, 7))

  def gradients(w, b, x, ids):
    def total(w, b, x):
      result = vocabulary_loss.chunked_cross_entropy(
        lambda x: x @ w + b, x, ids, (ids > 3).astype(float), chunk_size=2
      )
      return result.total, result

    return jax.value_and_grad(total, (0, 1, 2), has_aux=True)(w, b, x)

  def put(a, *spec):
    return jax.device_put(a, NamedSharding(mesh, P(*spec)))

  split = put(w, None, 'mdl'), put(b, 'mdl'), put(x, 'data'), put(ids, 'data')
  with jax.set_mesh(mesh):
    got = jax.jit(gradients)(*split)
  assert got[1][0].sharding.spec == P(None, 'mdl'), got[1][0].sharding
  want = jax.jit(gradients)(w, b, x, ids)
  for a, e in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
