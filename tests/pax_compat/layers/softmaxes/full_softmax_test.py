"""The full softmax and its loss against numpy.

Shapes: B batch, T time, D input dims, V classes.
"""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pax_compat import base_layer, errors
from pax_compat.base_layer import AUX_LOSS, PARAMS, SUMMARIES
from pax_compat.layers import activations, linears
from pax_compat.layers.softmaxes import full_softmax

B, T, D, V = 2, 3, 4, 7
RNG = np.random.default_rng(0)
W = RNG.normal(size=(D, V)).astype(np.float32)
BIAS = RNG.normal(size=(V,)).astype(np.float32)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
IDS = np.array([[0, 6, 3], [3, 3, 1]])
CLASS_WEIGHTS = np.array([[1, 0.5, 0], [1, 1, 0]], np.float32)
LOGITS = X.astype(np.float64) @ W + BIAS


def test_the_example():
  result = doctest.testmod(full_softmax)
  assert result.attempted > 0
  assert result.failed == 0


def _softmax(**fields):
  return full_softmax.FullSoftmax.config(
    input_dims=D, num_classes=V, **fields
  ).Instantiate()


def _variables(w=W, b=BIAS):
  return {PARAMS: {'logits_ffn': {'linear': {'w': w}, 'bias': {'b': b}}}}


def _run(variables=None, inputs=X, weights=CLASS_WEIGHTS, ids=IDS, **fields):
  variables = _variables() if variables is None else variables
  return _softmax(**fields).apply(variables, inputs, weights, ids)


def _xent(logits, probs=None):
  """Returns cross-entropies against `probs`, or else the right classes."""
  probs = np.eye(V)[IDS] if probs is None else probs
  return -(probs * special.log_softmax(logits, -1)).sum(-1)


def _log_z(logits):
  return special.logsumexp(logits, -1)


@pytest.mark.parametrize('chunk_size', [None, 0, 2])
def test_cross_entropy(chunk_size):
  out = _run(chunk_size=chunk_size)
  xent, argmax = _xent(LOGITS), LOGITS.argmax(-1)
  total = (xent * CLASS_WEIGHTS).sum()
  np.testing.assert_allclose(out.per_example_xent, xent, rtol=1e-5)
  np.testing.assert_array_equal(out.per_example_argmax, argmax)
  np.testing.assert_allclose(out.total_xent, total, rtol=1e-5)
  assert out.total_weight == 3.5
  np.testing.assert_allclose(out.avg_xent, total / 3.5, rtol=1e-5)
  right = ((argmax == IDS) * CLASS_WEIGHTS).sum()
  np.testing.assert_allclose(out.accuracy, right / 3.5, rtol=1e-6)
  if chunk_size:
    assert not {'logits', 'log_probs'} & set(out)
  else:
    np.testing.assert_allclose(out.logits, LOGITS, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
      out.log_probs, special.log_softmax(LOGITS, -1), rtol=1e-4
    )


def test_chunks_by_default_where_logits_are_many():
  """The result is as in one piece, logits and gradients included."""
  length, classes = 2200, 2000
  rng = np.random.default_rng(1)
  w = rng.normal(size=(D, classes)).astype(np.float32)
  x = rng.normal(size=(1, length, D)).astype(np.float32)
  ids = rng.integers(0, classes, (1, length))

  def gradient(chunk_size, part):
    layer = full_softmax.FullSoftmax.config(
      input_dims=D, num_classes=classes, use_bias=False, chunk_size=chunk_size
    ).Instantiate()

    def loss(w, x):
      variables = {PARAMS: {'logits_ffn': {'linear': {'w': w}}}}
      return part(layer.apply(variables, x, np.ones(ids.shape), ids))

    return jax.jit(jax.value_and_grad(loss, (0, 1))).lower(w, x).compile()

  for part in (
    lambda out: out.avg_xent,
    lambda out: out.avg_xent + jnp.sum(jnp.square(out.logits)) / 1e6,
  ):
    got, want = gradient(None, part)(w, x), gradient(0, part)(w, x)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
      np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6 * np.abs(e).max())
  # What nobody uses is not computed.
  memory = gradient(None, lambda out: out.avg_xent).memory_analysis()
  assert memory.temp_size_in_bytes < 4 * length * classes


@pytest.mark.parametrize('chunk_size', [0, 2])
def test_gradients(chunk_size):
  """Softmax minus target, in each position as much as it counts."""

  def loss(variables, x):
    return _run(variables, x, chunk_size=chunk_size).avg_xent

  got, by_x = jax.grad(loss, (0, 1))(_variables(), X)
  by_logits = special.softmax(LOGITS, -1) - np.eye(V)[IDS]
  by_logits *= CLASS_WEIGHTS[..., None] / 3.5
  ffn = got[PARAMS]['logits_ffn']
  np.testing.assert_allclose(by_x, by_logits @ W.T, atol=1e-6)
  np.testing.assert_allclose(
    ffn['linear']['w'], np.einsum('btd,btv->dv', X, by_logits), atol=1e-6
  )
  np.testing.assert_allclose(ffn['bias']['b'], by_logits.sum((0, 1)), atol=1e-6)


@pytest.mark.parametrize('chunk_size', [0, 2])
def test_large_logits_stay_finite_with_their_gradients(chunk_size):
  variables = jax.tree.map(lambda x: 1e4 * x, _variables())

  def total(variables):
    return _run(variables, chunk_size=chunk_size).total_xent

  value, grads = jax.value_and_grad(total)(variables)
  want = (_xent(1e4 * LOGITS) * CLASS_WEIGHTS).sum()
  np.testing.assert_allclose(value, want, rtol=1e-4)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_a_batch_of_paddings_has_a_loss_of_zero():
  out = _run(weights=0 * CLASS_WEIGHTS, z_loss_weight=0.1)
  assert out.avg_xent == out.z_loss == out.accuracy == out.total_weight == 0


def test_targets_may_have_a_last_dimension_of_one():
  want = _run()
  got = _run(weights=CLASS_WEIGHTS[..., None], ids=IDS[..., None])
  jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    ((CLASS_WEIGHTS, IDS[:, :2]), r'class_ids have the shape \[2, 2\]'),
    ((CLASS_WEIGHTS[0], IDS), r'class_weights have the shape \[3\]'),
    ((CLASS_WEIGHTS,), 'expected class_ids or class_probabilities'),
    (
      (CLASS_WEIGHTS, None, np.ones([B, T, V - 1])),
      r'class_probabilities have the shape \[2, 3, 6\], logits \[2, 3, 7\]',
    ),
  ],
)
def test_shapes_that_do_not_fit(args, message):
  with pytest.raises(errors.UserError, match=message):
    _softmax().apply(_variables(), X, *args)


@pytest.mark.parametrize('chunk_size', [0, 2])
@pytest.mark.parametrize('apply_for_eval', [True, False])
@pytest.mark.parametrize('do_eval', [True, False])
def test_label_smoothing(chunk_size, apply_for_eval, do_eval):
  with base_layer.eval_mode(do_eval):
    out = _run(
      label_smoothing_prob=0.3,
      label_smoothing_apply_for_eval=apply_for_eval,
      chunk_size=chunk_size,
    )
  smooth = apply_for_eval or not do_eval
  probs = np.where(np.eye(V)[IDS] == 1, 0.7, 0.3 / 6) if smooth else None
  np.testing.assert_allclose(
    out.per_example_xent, _xent(LOGITS, probs), rtol=1e-5
  )


@pytest.mark.parametrize('prob', [1.0, -0.1])
def test_label_smoothing_by_no_probability(prob):
  with pytest.raises(errors.UserError, match=f'label_smoothing_prob is {prob}'):
    _run(label_smoothing_prob=prob)


@pytest.mark.parametrize('chunk_size', [0, 2])
def test_z_loss(chunk_size):
  layer = _softmax(z_loss_weight=0.2, chunk_size=chunk_size)

  def loss(variables):
    out, collected = layer.apply(
      variables, X, CLASS_WEIGHTS, IDS, mutable=[AUX_LOSS, SUMMARIES]
    )
    aux_loss = collected[AUX_LOSS]['aux_z_loss']
    return out.avg_xent + aux_loss.value, (out, collected)

  gradients, (out, collected) = jax.grad(loss, has_aux=True)(_variables())
  want = 0.2 * (_log_z(LOGITS) ** 2 * CLASS_WEIGHTS).sum() / 3.5
  np.testing.assert_allclose(out.z_loss, want, rtol=1e-5)
  np.testing.assert_allclose(
    collected[SUMMARIES]['aux_z_loss'].value, want, rtol=1e-5
  )
  probs = special.softmax(LOGITS, -1)
  by_logits = probs - np.eye(V)[IDS]
  by_logits += 0.2 * 2 * _log_z(LOGITS)[..., None] * probs
  by_logits *= CLASS_WEIGHTS[..., None] / 3.5
  np.testing.assert_allclose(
    gradients[PARAMS]['logits_ffn']['bias']['b'],
    by_logits.sum((0, 1)),
    atol=1e-6,
  )


def test_class_probabilities():
  probs = RNG.dirichlet(np.ones(V), (B, T)).astype(np.float32)
  out = _softmax(chunk_size=2, label_smoothing_prob=0.1).apply(
    _variables(), X, CLASS_WEIGHTS, class_probabilities=probs
  )
  np.testing.assert_allclose(
    out.per_example_xent, _xent(LOGITS, probs), rtol=1e-5
  )
  assert 'accuracy' not in out


def test_logits_are_clipped_or_capped():
  def got(**fields):
    layer = _softmax(**fields)
    return layer.apply(_variables(), 10 * X, method=layer.get_logits)

  logits = 10.0 * X @ W + BIAS
  np.testing.assert_allclose(
    got(logits_abs_max=3.0), np.clip(logits, -3, 3), rtol=1e-4
  )
  np.testing.assert_allclose(
    got(soft_cap_logits=3.0), 3 * np.tanh(logits / 3), rtol=1e-4
  )
  np.testing.assert_allclose(
    got(soft_cap_logits=3.0, logits_abs_max=2.0),
    3 * np.tanh(np.clip(logits, -2, 2) / 3),
    rtol=1e-4,
  )
  np.testing.assert_allclose(
    got(scale_before_logits=True), 5.0 * X @ W + BIAS, rtol=1e-4, atol=1e-5
  )


def test_inputs_that_are_logits():
  layer = full_softmax.FullSoftmax.config(
    input_dims=V, num_classes=V, feed_forward_tpl=None
  )
  out = layer.Instantiate().apply({}, LOGITS, CLASS_WEIGHTS, IDS)
  np.testing.assert_allclose(out.per_example_xent, _xent(LOGITS), rtol=1e-5)
  with pytest.raises(errors.UserError, match='input_dims is 3 and num_cl.* 7'):
    layer.clone().set(input_dims=3).Instantiate().apply({}, X, None)


@pytest.mark.parametrize('chunk_size', [None, 2])
def test_weights_as_declared(chunk_size):
  layer = _softmax(
    bias_init=0.5,
    chunk_size=chunk_size,
    params_init=base_layer.WeightInit.Constant(2.0),
    weight_split_dims_mapping=linears.Linear.WeightSharding.config(
      wt=[None, 'mdl']
    ),
  )
  variables = layer.init_boxed(jax.random.key(0), X, CLASS_WEIGHTS, IDS)
  assert set(variables) == {PARAMS}
  ffn = variables[PARAMS]['logits_ffn']
  w, b = ffn['linear']['w'], ffn['bias']['b']
  np.testing.assert_array_equal(w.value, np.full([D, V], 2.0))
  np.testing.assert_array_equal(b.value, np.full([V], 0.5))
  assert list(w.meta.tensor_split_dims_mapping) == [None, 'mdl']
  assert list(b.meta.tensor_split_dims_mapping) == ['mdl']


def test_the_template_decides_what_the_layer_leaves_open():
  tpl = linears.FeedForward.config(has_bias=False)
  for fields in ({'feed_forward_tpl': tpl}, {'use_bias': False}):
    variables = _softmax(**fields).init_boxed(
      jax.random.key(0), X, CLASS_WEIGHTS, IDS
    )
    assert set(variables[PARAMS]['logits_ffn']) == {'linear'}
  with pytest.raises(errors.UserError, match='feed_forward_tpl.has_bias'):
    _run(feed_forward_tpl=tpl, use_bias=True)
  tpl = linears.FeedForward.config(activation_tpl=activations.GELU.config())
  with pytest.raises(errors.UserError, match='activation_tpl is GELU'):
    _run(feed_forward_tpl=tpl)


@pytest.mark.parametrize('chunk_size', [0, 2])
def test_the_loss_is_in_single_precision(chunk_size):
  out = _run(
    inputs=X.astype(jnp.bfloat16),
    fprop_dtype=jnp.bfloat16,
    chunk_size=chunk_size,
  )
  for name in ('avg_xent', 'per_example_xent', 'total_xent'):
    assert out[name].dtype == jnp.float32
  if not chunk_size:
    assert out.logits.dtype == jnp.bfloat16
    assert out.log_probs.dtype == jnp.float32
