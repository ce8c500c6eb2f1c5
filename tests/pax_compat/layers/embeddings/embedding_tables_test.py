"""Embeddings of tokens against rows of a table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, ROW_PROBES
from pax_compat.layer_core import sharding
from pax_compat.layer_core.row_gradients import no_statistics
from pax_compat.layers.embeddings import embedding_tables

V, D = 7, 4
TABLE = np.random.default_rng(0).normal(size=(V, D)).astype(np.float32)
IDS = np.array([[0, 6, 3], [3, 3, 1]])
STYLES = ['index', 'matmul']


def _embedding(**fields):
  return embedding_tables.Embedding.config(
    num_classes=V, input_dims=D, **fields
  ).Instantiate()


@pytest.fixture(autouse=True, params=[True, False])
def one_cpu(request, monkeypatch):
  """On a single CPU, rows are gathered in both styles."""
  monkeypatch.setattr(sharding, 'is_one_cpu', lambda: request.param)


def _apply(ids=IDS, **fields):
  return _embedding(**fields).apply({PARAMS: {'emb_var': TABLE}}, ids)


@pytest.mark.parametrize('style', STYLES)
@pytest.mark.parametrize('scale', [False, True])
def test_looks_up_rows(style, scale):
  y = _apply(scale_sqrt_depth=scale, lookup_style=style)
  want = [[TABLE[i] * (np.sqrt(D) if scale else 1) for i in row] for row in IDS]
  np.testing.assert_allclose(y, want, rtol=1e-6)
  np.testing.assert_array_equal(
    y, _apply(IDS.tolist(), scale_sqrt_depth=scale, lookup_style=style)
  )


@pytest.mark.parametrize('style', STYLES)
def test_the_gradient_of_a_row_is_the_sum_over_its_lookups(style):
  layer = _embedding(lookup_style=style)
  g = np.random.default_rng(1).normal(size=(2, 3, D)).astype(np.float32)
  got = jax.grad(
    lambda t: jnp.sum(layer.apply({PARAMS: {'emb_var': t}}, IDS) * g)
  )(TABLE)
  want = np.zeros_like(TABLE)
  np.add.at(want, IDS, g)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('style', STYLES)
def test_ids_that_the_table_has_not(style):
  ids = np.array([-1, 0, V - 1, V])
  y = _apply(ids, lookup_style=style, set_nan_for_oob_id=True)
  assert np.isnan(y).all(-1).tolist() == [True, False, False, True]
  y = _apply(np.array([V + 3]), lookup_style=style)
  want = np.zeros(D) if style == 'matmul' else TABLE[-1]
  np.testing.assert_array_equal(y[0], want)


def test_a_decoding_step_looks_up_rows():
  layer = _embedding()
  y = layer.apply(
    {PARAMS: {'emb_var': TABLE}}, IDS[:, 0], time_step=2, method='extend_step'
  )
  np.testing.assert_array_equal(y, TABLE[IDS[:, 0]])


def test_the_dtype_of_the_computation():
  for style in STYLES:
    y = _apply(
      fprop_dtype=jnp.bfloat16, lookup_style=style, scale_sqrt_depth=True
    )
    assert y.dtype == jnp.bfloat16


def test_sparse_gradients_bring_a_probe_that_changes_no_value():
  layer = _embedding(sparse_gradients=True)
  first = layer.init_boxed({PARAMS: jax.random.key(0)}, IDS)
  assert first[ROW_PROBES]['emb_var'].counts.shape == (V,)
  assert ROW_PROBES not in _embedding().init_boxed(
    {PARAMS: jax.random.key(0)}, IDS
  )
  variables = {PARAMS: {'emb_var': TABLE}}
  probed = variables | {ROW_PROBES: {'emb_var': no_statistics(V)}}
  np.testing.assert_array_equal(layer.apply(variables, IDS), TABLE[IDS])
  np.testing.assert_array_equal(layer.apply(probed, IDS), TABLE[IDS])


def test_the_scale_of_vectors_counts_in_the_facts():
  layer = _embedding(sparse_gradients=True, scale_sqrt_depth=True)

  def loss(probe):
    variables = {PARAMS: {'emb_var': TABLE}, ROW_PROBES: {'emb_var': probe}}
    return jnp.sum(layer.apply(variables, IDS))

  statistics = jax.grad(loss)(no_statistics(V))
  np.testing.assert_array_equal(statistics.counts, [1, 1, 0, 3, 0, 0, 1])
  np.testing.assert_allclose(statistics.sum_squares, 6 * D * D, rtol=1e-6)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'lookup_style': 'gather'}, "lookup_style is 'gather'; .*'matmul'"),
    (
      {'lookup_style': 'matmul', 'sparse_gradients': True},
      "sparse_gradients needs the lookup_style 'index', not 'matmul'",
    ),
  ],
)
def test_styles_that_do_not_exist(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _apply(**fields)


def test_split_as_declared():
  first = _embedding(
    weight_split_dims_mapping=base_layer.WeightSharding.config(
      wt=['mdl', 'data']
    )
  ).init_boxed(jax.random.key(0), IDS)
  meta = first[PARAMS]['emb_var'].meta
  assert list(meta.tensor_split_dims_mapping) == ['mdl', 'data']
