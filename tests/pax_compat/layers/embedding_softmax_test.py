"""Embeddings and the softmax against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pax_compat import errors
from pax_compat.base_layer import PARAMS, ROW_PROBES
from pax_compat.layers import embedding_softmax
from pax_compat.layers.row_gradients import no_facts

RNG = np.random.default_rng(0)
V, D = 7, 4
TABLE = RNG.normal(size=(V, D)).astype(np.float32)
IDS = np.array([[0, 6, 3], [3, 3, 1]])


def _embedding(**fields):
  return embedding_softmax.Embedding.config(
    num_classes=V, input_dims=D, **fields
  ).Instantiate()


@pytest.mark.parametrize('scale', [False, True])
def test_embedding_looks_up_rows(scale):
  layer = _embedding(scale_sqrt_depth=scale)
  y = layer.apply({PARAMS: {'emb_var': TABLE}}, IDS)
  want = [[TABLE[i] * (np.sqrt(D) if scale else 1) for i in row] for row in IDS]
  np.testing.assert_allclose(y, want, rtol=1e-6)


def test_sparse_gradients_bring_a_probe_that_changes_no_value():
  layer = _embedding(sparse_gradients=True)
  first = layer.init({PARAMS: jax.random.key(0)}, IDS)
  assert first[ROW_PROBES]['emb_var'].counts.shape == (V,)
  assert ROW_PROBES not in _embedding().init({PARAMS: jax.random.key(0)}, IDS)
  variables = {PARAMS: {'emb_var': TABLE}}
  probed = variables | {ROW_PROBES: {'emb_var': no_facts(V)}}
  np.testing.assert_array_equal(layer.apply(variables, IDS), TABLE[IDS])
  np.testing.assert_array_equal(layer.apply(probed, IDS), TABLE[IDS])


def test_the_scale_of_vectors_counts_in_the_facts():
  layer = _embedding(sparse_gradients=True, scale_sqrt_depth=True)

  def loss(probe):
    variables = {PARAMS: {'emb_var': TABLE}, ROW_PROBES: {'emb_var': probe}}
    return jnp.sum(layer.apply(variables, IDS))

  facts = jax.grad(loss)(no_facts(V))
  np.testing.assert_array_equal(facts.counts, [1, 1, 0, 3, 0, 0, 1])
  np.testing.assert_allclose(facts.sum_squares, 6 * D * D, rtol=1e-6)


def test_positions():
  """Vaswani et al. 2017, section 3.5, sines before cosines."""
  dims, length = 8, 50
  layer = embedding_softmax.PositionalEmbedding.config(
    embedding_dims=dims
  ).Instantiate()
  y = layer.apply({}, length)
  assert y.shape == (1, length, dims)
  # The periods go from 2 pi to 2 pi times 10,000, both reached.
  periods = 10_000 ** (np.arange(dims // 2) / (dims // 2 - 1))
  angles = np.arange(length)[:, None] / periods
  want = np.concatenate([np.sin(angles), np.cos(angles)], -1)
  np.testing.assert_allclose(y[0], want, atol=1e-5)


def test_positions_need_an_even_number_of_dims():
  layer = embedding_softmax.PositionalEmbedding.config(embedding_dims=5)
  with pytest.raises(errors.UserError, match='embedding_dims is 5; .*even'):
    layer.Instantiate().apply({}, 3)


def _softmax(**fields):
  return embedding_softmax.FullSoftmax.config(
    input_dims=D, num_classes=V, **fields
  ).Instantiate()


def _weights(scale=1.0):
  w = RNG.normal(size=(D, V)).astype(np.float32) * scale
  b = RNG.normal(size=(V,)).astype(np.float32) * scale
  return w, b, {PARAMS: {'logits_ffn': {'linear': {'w': w}, 'bias': {'b': b}}}}


def _inputs():
  x = RNG.normal(size=(2, 3, D)).astype(np.float32)
  weights = np.array([[1, 0.5, 0], [1, 1, 0]], np.float32)
  return x, weights, IDS


def test_softmax_cross_entropy():
  w, b, variables = _weights()
  x, weights, ids = _inputs()
  out = _softmax().apply(variables, x, weights, ids)
  logits = x.astype(np.float64) @ w + b
  xent = -np.take_along_axis(
    special.log_softmax(logits, -1), ids[..., None], -1
  )[..., 0]
  np.testing.assert_allclose(out.logits, logits, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(out.per_example_xent, xent, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(out.per_example_argmax, logits.argmax(-1))
  np.testing.assert_allclose(out.total_xent, (xent * weights).sum(), rtol=1e-5)
  assert out.total_weight == 3.5
  np.testing.assert_allclose(
    out.avg_xent, (xent * weights).sum() / 3.5, rtol=1e-5
  )


def test_large_logits_stay_finite_with_their_gradients():
  w, b, variables = _weights(scale=1e4)
  x, weights, ids = _inputs()

  def total(variables):
    return _softmax().apply(variables, x, weights, ids).total_xent

  value, grads = jax.value_and_grad(total)(variables)
  logits = x.astype(np.float64) @ w + b
  log_probs = np.take_along_axis(
    special.log_softmax(logits, -1), ids[..., None], -1
  )[..., 0]
  np.testing.assert_allclose(value, -(log_probs * weights).sum(), rtol=1e-4)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_a_batch_of_paddings_has_a_loss_of_zero():
  _, _, variables = _weights()
  x, weights, ids = _inputs()
  out = _softmax().apply(variables, x, 0 * weights, ids)
  assert out.avg_xent == 0 and out.total_weight == 0


def test_logits_are_clipped_or_capped():
  w, b, variables = _weights(scale=10)
  x, _, _ = _inputs()
  logits = x.astype(np.float64) @ w + b

  def got(**fields):
    layer = _softmax(**fields)
    return layer.apply(variables, x, method=layer.get_logits)

  np.testing.assert_allclose(
    got(logits_abs_max=3.0), np.clip(logits, -3, 3), rtol=1e-4
  )
  np.testing.assert_allclose(
    got(soft_cap_logits=3.0), 3 * np.tanh(logits / 3), rtol=1e-4
  )


def test_the_loss_is_in_single_precision():
  _, _, variables = _weights()
  x, weights, ids = _inputs()
  out = _softmax(fprop_dtype=jnp.bfloat16).apply(
    variables, x.astype(jnp.bfloat16), weights, ids
  )
  assert out.avg_xent.dtype == jnp.float32
  assert out.per_example_xent.dtype == jnp.float32
