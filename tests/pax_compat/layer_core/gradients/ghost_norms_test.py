"""The squares of taps are those of gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import PARAMS, WeightHParams
from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.layers.attentions import attention_projections
from pax_compat.layers.embeddings import embedding_tables, positional_embeddings

_HEADS = {'input_dim': 6, 'num_heads': 2, 'dim_per_head': 3}


def _assert_square(layer, *args, paths):
  """Compares the gradient of the probe with that of the weights."""
  weights = layer.init(jax.random.key(1), *args)

  def loss(weights, probe):
    with ghost_norms.measuring(probe, paths) as taps:
      outputs = layer.apply(weights, *args)
    assert taps.reached == set(paths)
    return sum(jnp.sum(jnp.sin(x + 1)) for x in jax.tree.leaves(outputs))

  of_weights, square = jax.grad(loss, argnums=(0, 1))(weights, 0.0)
  own = of_weights[PARAMS]
  assert set(own) == set(paths)
  expected = sum(np.sum(np.square(x)) for x in own.values())
  np.testing.assert_allclose(square, expected, rtol=1e-5)


@pytest.mark.parametrize('length', [1, 2, 9])
@pytest.mark.parametrize(
  'layer,dims',
  [
    (attention_projections.AttentionProjection.config(**_HEADS), (6,)),
    (
      attention_projections.AttentionProjection.config(
        is_output_projection=True, **_HEADS
      ),
      (2, 3),
    ),
    (
      attention_projections.AttentionProjection.config(
        is_output_projection=True, use_nhd_shape=True, **_HEADS
      ),
      (2, 3),
    ),
    (
      attention_projections.CombinedQKVProjectionLayer.config(
        attention_combine_dims=True, **_HEADS
      ),
      (6,),
    ),
    (
      attention_projections.OneHeadedAttentionProjection.config(
        input_dim=6, output_dim=4
      ),
      (6,),
    ),
  ],
)
def test_projections(layer, dims, length):
  inputs = jax.random.normal(jax.random.key(2), [2, length, *dims])
  layer = layer.Instantiate()
  _assert_square(layer, inputs, paths=['w', 'b'])


def test_a_combined_bias_of_heads():
  layer = attention_projections.CombinedQKVProjectionLayer.config(**_HEADS)
  inputs = jax.random.normal(jax.random.key(2), [2, 4, 6])
  _assert_square(layer.Instantiate(), inputs, paths=['w', 'b'])


@pytest.mark.parametrize('lookup_style', ['index', 'matmul'])
def test_lookups_of_equal_and_unknown_rows(lookup_style):
  layer = embedding_tables.Embedding.config(
    num_classes=5, input_dims=3, lookup_style=lookup_style
  ).Instantiate()
  ids = jnp.array([[1, 4, 1, -1], [9, 0, 1, -8]])
  _assert_square(layer, ids, paths=['emb_var'])


@pytest.mark.parametrize('lookup_style', ['index', 'matmul'])
@pytest.mark.parametrize('length', [None, 3, 6])
def test_positions(lookup_style, length):
  """Of rows beyond the slice of the table, and of all rows in order."""
  layer = positional_embeddings.TrainablePositionalEmbedding.config(
    max_seq_length=6, embedding_dims=3, lookup_style=lookup_style
  ).Instantiate()
  positions = jnp.array([[1, 2, 1, 4], [5, 0, 1, 9]])
  _assert_square(layer, length, positions, paths=['emb_var'])
  if length:
    _assert_square(layer, length, paths=['emb_var'])


class _Grouped(base_layer.BaseLayer):
  """A product that keeps a dimension of its inputs and weight."""

  def setup(self):
    self.create_variable('w', WeightHParams([2, 3, 4]))

  def __call__(self, inputs):
    equation = '...gd,gdo->...go'
    outputs = jnp.einsum(equation, inputs, self.theta.w)
    return ghost_norms.product(self, 'w', equation, inputs, outputs)


def test_other_products_have_no_tap():
  layer, inputs = _Grouped.config().Instantiate(), jnp.ones([5, 2, 3])
  weights = layer.init(jax.random.key(0), inputs)
  with ghost_norms.finding() as found:
    layer.apply(weights, inputs)
  assert not found.sizes


def test_elsewhere_a_tap_is_nothing():
  layer = embedding_tables.Embedding.config(num_classes=5, input_dims=3)
  layer, ids = layer.Instantiate(), jnp.array([1])
  weights = layer.init(jax.random.key(0), ids)
  text = str(jax.make_jaxpr(layer.apply)(weights, ids))
  assert 'gather' in text
  assert not any(x in text for x in ('_measured', ghost_norms.MARK))
  assert not ghost_norms.is_active()
