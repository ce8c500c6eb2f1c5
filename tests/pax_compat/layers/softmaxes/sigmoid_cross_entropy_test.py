"""The cross-entropy of independent decisions against numpy.

Shapes: B batch, D input dims, V classes.
"""

import jax
import numpy as np
import pytest
from scipy import special

from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.softmaxes import sigmoid_cross_entropy

B, D, V = 3, 4, 5
RNG = np.random.default_rng(0)
W = RNG.normal(size=(D, V)).astype(np.float32)
BIAS = RNG.normal(size=(V,)).astype(np.float32)
X = RNG.normal(size=(B, D)).astype(np.float32)
IDS = np.array([0, 4, 2])
PROBS = RNG.random((B, V)).astype(np.float32)
CLASS_WEIGHTS = np.array([1, 0.5, 0], np.float32)
LOGITS = X.astype(np.float64) @ W + BIAS
VARIABLES = {PARAMS: {'logits_ffn': {'linear': {'w': W}, 'bias': {'b': BIAS}}}}


def _layer(**fields):
  return sigmoid_cross_entropy.SigmoidCrossEntropy.config(
    **{'input_dims': D, 'num_classes': V, **fields}
  ).Instantiate()


def _xent(logits, probs):
  """Returns the cross-entropy [B, V] of each decision."""
  right = special.log_expit(logits)
  wrong = special.log_expit(-logits)
  return -(probs * right + (1 - probs) * wrong)


@pytest.mark.parametrize('last', [(), (1,)])
def test_one_class_is_right(last):
  out = _layer().apply(
    VARIABLES,
    X,
    CLASS_WEIGHTS.reshape(B, *last),
    class_ids=IDS.reshape(B, *last),
  )
  want = _xent(LOGITS, np.eye(V)[IDS]).sum(-1)
  np.testing.assert_allclose(out.per_example_xent, want, rtol=1e-5)
  np.testing.assert_array_equal(out.per_example_argmax, LOGITS.argmax(-1))
  total = (want * CLASS_WEIGHTS).sum()
  np.testing.assert_allclose(out.total_xent, total, rtol=1e-5)
  assert out.total_weight == 1.5
  np.testing.assert_allclose(out.avg_xent, total / 1.5, rtol=1e-5)
  np.testing.assert_allclose(out.logits, LOGITS, rtol=1e-4)
  np.testing.assert_allclose(
    out.log_probs, special.log_expit(LOGITS), rtol=1e-4
  )


def test_each_decision_has_a_weight():
  weights = RNG.random((B, V)).astype(np.float32)
  out = _layer().apply(VARIABLES, X, weights, class_probabilities=PROBS)
  want = (_xent(LOGITS, PROBS) * weights).sum(-1)
  np.testing.assert_allclose(out.per_example_xent, want, rtol=1e-5)
  np.testing.assert_allclose(out.total_xent, want.sum(), rtol=1e-5)
  np.testing.assert_allclose(out.total_weight, weights.sum(), rtol=1e-6)


def test_gradient():
  """The probability minus the target, in each decision."""
  layer = _layer()

  def total(variables):
    return layer.apply(
      variables, X, CLASS_WEIGHTS, class_probabilities=PROBS
    ).total_xent

  got = jax.grad(total)(VARIABLES)[PARAMS]['logits_ffn']
  by_logits = (special.expit(LOGITS) - PROBS) * CLASS_WEIGHTS[:, None]
  np.testing.assert_allclose(
    got['linear']['w'], X.T @ by_logits, rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(got['bias']['b'], by_logits.sum(0), rtol=1e-4)


def test_large_logits_stay_finite():
  variables = jax.tree.map(lambda x: 1e4 * x, VARIABLES)

  def total(variables):
    return _layer().apply(variables, X, CLASS_WEIGHTS, class_ids=IDS).total_xent

  value, gradients = jax.value_and_grad(total)(variables)
  want = _xent(1e4 * LOGITS, np.eye(V)[IDS]).sum(-1) * CLASS_WEIGHTS
  np.testing.assert_allclose(value, want.sum(), rtol=1e-4)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_logits_as_inputs_may_be_capped():
  layer = _layer(input_dims=V, feed_forward_tpl=None, soft_cap_logits=2.0)
  out = layer.apply({}, LOGITS, CLASS_WEIGHTS, class_ids=IDS)
  capped = 2 * np.tanh(LOGITS / 2)
  np.testing.assert_allclose(
    out.per_example_xent, _xent(capped, np.eye(V)[IDS]).sum(-1), rtol=1e-5
  )


def test_a_single_decision():
  layer = _layer(input_dims=1, num_classes=1, feed_forward_tpl=None)
  logits, probs = LOGITS[:, :1], PROBS[:, :1]
  out = layer.apply(
    {}, logits, CLASS_WEIGHTS[:, None], class_probabilities=probs
  )
  want = _xent(logits, probs)[:, 0]
  np.testing.assert_allclose(
    out.total_xent, (want * CLASS_WEIGHTS).sum(), rtol=1e-5
  )
  with pytest.raises(errors.UserError, match='expected class_probabilities'):
    layer.apply({}, logits, CLASS_WEIGHTS, class_ids=np.zeros(B, int))


@pytest.mark.parametrize(
  ('weights', 'targets', 'message'),
  [
    (CLASS_WEIGHTS, {}, 'expected class_ids or class_probabilities'),
    (
      CLASS_WEIGHTS,
      {'class_probabilities': PROBS[:, 1:]},
      r'shape \[3, 4\]; expected \[3, 5\]',
    ),
    (
      PROBS[:, 1:],
      {'class_ids': IDS},
      r'class_weights have the shape \[3, 4\]',
    ),
  ],
)
def test_shapes_that_do_not_fit(weights, targets, message):
  with pytest.raises(errors.UserError, match=message):
    _layer().apply(VARIABLES, X, weights, **targets)


def test_without_a_projection_the_inputs_are_the_logits():
  with pytest.raises(errors.UserError, match='input_dims is 4 and num_classes'):
    _layer(feed_forward_tpl=None).apply({}, X, CLASS_WEIGHTS, class_ids=IDS)
