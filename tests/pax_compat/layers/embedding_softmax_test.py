"""Softmax layers that share their matrix with an embedding, against numpy.

Shapes: B batch, T time, D model dims, V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import activations, embedding_softmax, linears

B, T, D, V = 2, 3, 4, 7
RNG = np.random.default_rng(0)
# One vector for each token.
TABLE = RNG.normal(size=(V, D)).astype(np.float32)
BIAS = RNG.normal(size=(V,)).astype(np.float32)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
IDS = np.array([[0, 6, 3], [3, 3, 1]])
CLASS_WEIGHTS = np.array([[1, 0.5, 0], [1, 1, 0]], np.float32)

SHARED = embedding_softmax.SharedEmbeddingSoftmax
MAJOR = embedding_softmax.NClassMajorSharedEmbeddingSoftmax
GSHARD = embedding_softmax.GShardSharedEmbeddingSoftmax
ALL = [SHARED, MAJOR, GSHARD]


def _layer(cls, **fields):
  return cls.config(input_dims=D, num_classes=V, **fields).Instantiate()


def _variables(cls, table=TABLE, bias=BIAS):
  if cls is SHARED:
    weights = {'logits_ffn': {'linear': {'w': table.T}, 'bias': {'b': bias}}}
  elif cls is MAJOR:
    weights = {'w': table, 'bias': {'b': bias}}
  else:
    weights = {'embedding': {'w': table}}
  return {PARAMS: weights}


def _logits(cls, x=X):
  x = x.astype(np.float64)
  return x @ TABLE.T / np.sqrt(D) if cls is GSHARD else x @ TABLE.T + BIAS


def _xent(logits, probs=None):
  probs = np.eye(V)[IDS] if probs is None else probs
  return -(probs * special.log_softmax(logits, -1)).sum(-1)


def _run(cls, **fields):
  layer = _layer(cls, **fields)
  return layer.apply(_variables(cls), X, CLASS_WEIGHTS, IDS)


@pytest.mark.parametrize('cls', ALL)
@pytest.mark.parametrize('chunk_size', [None, 2])
def test_the_softmax(cls, chunk_size):
  out = _run(cls, chunk_size=chunk_size)
  want = _xent(_logits(cls))
  np.testing.assert_allclose(out.per_example_xent, want, rtol=1e-5)
  total = (want * CLASS_WEIGHTS).sum()
  np.testing.assert_allclose(out.total_xent, total, rtol=1e-5)
  # GShard's average is over all positions.
  count = CLASS_WEIGHTS.size if cls is GSHARD else CLASS_WEIGHTS.sum()
  np.testing.assert_allclose(out.avg_xent, total / count, rtol=1e-5)


@pytest.mark.parametrize('cls', ALL)
@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_the_embedding(cls, style):
  layer = _layer(cls, lookup_style=style)
  variables = _variables(cls)
  y = layer.apply(variables, IDS, method='emb_lookup')
  np.testing.assert_allclose(y, TABLE[IDS], rtol=1e-6)
  y = layer.apply(variables, IDS[:, 0], time_step=1, method='extend_step')
  np.testing.assert_allclose(y, TABLE[IDS[:, 0]], rtol=1e-6)


@pytest.mark.parametrize('cls', [SHARED, MAJOR])
def test_embedding_scaled(cls):
  layer = _layer(cls, scale_sqrt_depth=True)
  y = layer.apply(_variables(cls), IDS, method='emb_lookup')
  np.testing.assert_allclose(y, 2 * TABLE[IDS], rtol=1e-6)


@pytest.mark.parametrize('cls', ALL)
@pytest.mark.parametrize('chunk_size', [0, 2])
def test_the_gradient_of_the_table_is_that_of_both_uses(cls, chunk_size):
  layer = _layer(cls, chunk_size=chunk_size)

  def loss(table):
    bound = layer.bind(_variables(cls, table))
    vectors = bound.emb_lookup(IDS)
    return bound(jnp.tanh(vectors), CLASS_WEIGHTS, IDS).total_xent

  def plain(table):
    x = jnp.tanh(table[IDS])
    logits = x @ table.T / D**0.5 if cls is GSHARD else x @ table.T + BIAS
    log_probs = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(log_probs, IDS[..., None], -1)[..., 0]
    return -jnp.sum(right * CLASS_WEIGHTS)

  np.testing.assert_allclose(
    jax.grad(loss)(jnp.asarray(TABLE)),
    jax.grad(plain)(jnp.asarray(TABLE)),
    rtol=1e-5,
    atol=1e-6,
  )


@pytest.mark.parametrize('cls', ALL)
@pytest.mark.parametrize('method', ['__call__', 'emb_lookup'])
def test_weights_are_there_whichever_use_comes_first(cls, method):
  args = (IDS,) if method == 'emb_lookup' else (X, CLASS_WEIGHTS, IDS)
  first = _layer(cls, chunk_size=2).init_boxed(
    jax.random.key(0), *args, method=method
  )
  shapes = jax.tree.map(np.shape, base_layer.unbox(first))
  want = jax.tree.map(np.shape, _variables(cls))
  # A lookup alone needs no bias in layers that have it as a child.
  weights = jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple))
  known = jax.tree.leaves(want, is_leaf=lambda x: isinstance(x, tuple))
  assert set(weights) <= set(known)
  assert {(V, D), (D, V)} & set(weights)


def test_gshards_first_weights_are_gaussian():
  layer = GSHARD.config(input_dims=50, num_classes=400).Instantiate()
  x = np.zeros([1, 2, 50], np.float32)
  first = layer.init_boxed(
    jax.random.key(0), x, np.ones([1, 2]), np.zeros([1, 2])
  )
  w = np.asarray(first[PARAMS]['embedding']['w'].value)
  assert w.shape == (400, 50)
  np.testing.assert_allclose([w.mean(), w.std()], [0, 1], atol=0.02)


def test_gshards_logits_are_capped_before_they_are_clipped():
  layer = _layer(GSHARD, soft_cap_logits=3.0, logits_abs_max=2.0)
  got = layer.apply(_variables(GSHARD), 20 * X, method='get_logits')
  want = np.clip(3 * np.tanh(_logits(GSHARD, 20 * X) / 3), -2, 2)
  np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize('do_eval', [True, False])
def test_gshards_labels_are_smoothed_in_training(do_eval):
  with base_layer.eval_mode(do_eval):
    out = _run(GSHARD, label_smoothing_prob=0.3)
  probs = 0.7 * np.eye(V)[IDS] + 0.3 / V
  want = _xent(_logits(GSHARD), None if do_eval else probs)
  np.testing.assert_allclose(out.per_example_xent, want, rtol=1e-5)


@pytest.mark.parametrize('of_labels', [True, False])
def test_gshards_denominator(of_labels):
  out = _run(
    GSHARD,
    use_tgt_labels_size_as_loss_denominator=of_labels,
    z_loss_weight=0.5,
  )
  count = B * T if of_labels else 3.5
  logits = _logits(GSHARD)
  assert out.avg_xent_weight == count
  np.testing.assert_allclose(
    out.avg_xent, (_xent(logits) * CLASS_WEIGHTS).sum() / count, rtol=1e-5
  )
  squares = special.logsumexp(logits, -1) ** 2
  np.testing.assert_allclose(
    out.z_loss, 0.5 * (squares * CLASS_WEIGHTS).sum() / count, rtol=1e-5
  )


def test_gshards_bias_and_scales():
  layer = _layer(
    GSHARD, use_bias=True, scale_sqrt_depth=True, scale_before_logits=False
  )
  variables = _variables(GSHARD)
  variables[PARAMS]['bias'] = {'b': BIAS}
  vectors = layer.apply(variables, IDS, method='emb_lookup')
  np.testing.assert_allclose(vectors, 2 * TABLE[IDS], rtol=1e-6)
  logits = layer.apply(variables, X, method='get_logits')
  np.testing.assert_allclose(logits, X @ TABLE.T + BIAS, rtol=1e-5, atol=1e-6)
  first = layer.init_boxed(jax.random.key(0), X, method='get_logits')
  assert not np.any(base_layer.unbox(first)[PARAMS]['bias']['b'])


def test_gshards_denominator_may_be_fixed():
  out = _run(GSHARD, fixed_loss_denominator=12.5, z_loss_weight=0.5)
  logits = _logits(GSHARD)
  total = (_xent(logits) * CLASS_WEIGHTS).sum()
  np.testing.assert_allclose(out.avg_xent, total / 12.5, rtol=1e-5)
  squares = (special.logsumexp(logits, -1) ** 2 * CLASS_WEIGHTS).sum()
  np.testing.assert_allclose(out.z_loss, 0.5 * squares / 12.5, rtol=1e-5)


def test_class_major_logits_may_have_an_activation_and_no_bias():
  layer = _layer(
    MAJOR,
    use_bias=False,
    activation_tpl=activations.Tanh.config(),
    scale_before_logits=True,
  )
  got = layer.apply({PARAMS: {'w': TABLE}}, X, method='get_logits')
  np.testing.assert_allclose(got, np.tanh(X @ TABLE.T / 2), rtol=1e-4)


@pytest.mark.parametrize('cls', ALL)
def test_split_as_declared(cls):
  """The mapping is of [D, V], but GShard's is of its matrix, [V, D]."""
  layer = _layer(
    cls,
    weight_split_dims_mapping=linears.Linear.WeightSharding.config(
      wt=['data', 'mdl']
    ),
  )
  first = layer.init_boxed(jax.random.key(0), X, CLASS_WEIGHTS, IDS)[PARAMS]
  splits = {
    box.value.shape: tuple(box.meta.tensor_split_dims_mapping)
    for box in jax.tree.leaves(first, is_leaf=base_layer.is_boxed)
  }
  want = {
    SHARED: {(D, V): ('data', 'mdl'), (V,): ('mdl',)},
    MAJOR: {(V, D): ('mdl', 'data'), (V,): ('mdl',)},
    GSHARD: {(V, D): ('data', 'mdl')},
  }
  assert splits == want[cls]


def test_a_style_that_does_not_exist():
  with pytest.raises(errors.UserError, match="lookup_style is 'gather'"):
    _layer(SHARED, lookup_style='gather').apply(
      _variables(SHARED), IDS, method='emb_lookup'
    )


def test_the_denominator_is_exact_for_weights_of_low_precision():
  """257 is not a bfloat16."""
  out = _layer(GSHARD, use_tgt_labels_size_as_loss_denominator=False).apply(
    _variables(GSHARD),
    jnp.ones([1, 257, D]),
    jnp.ones([1, 257], jnp.bfloat16),
    jnp.zeros([1, 257], jnp.int32),
  )
  assert out.avg_xent_weight == out.total_weight == 257
