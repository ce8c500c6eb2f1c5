"""The focal loss against numpy.

Shapes: B batch, T time, D input dims, V classes.
"""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.softmaxes.focal_softmax import FocalSoftmax
from pax_compat.layers.softmaxes.full_softmax import FullSoftmax

B, T, D, V = 2, 3, 4, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, T, D]).astype(np.float32)
IDS = RNG.integers(0, V, [B, T])
PROBABILITIES = RNG.dirichlet(np.ones(V), [B, T]).astype(np.float32)
WEIGHTS = RNG.uniform(0, 2, [B, T]).astype(np.float32)
FACTORS = (0.5, 1.0, 2.0, 0.0, 3.0)


def _layer(cls=FocalSoftmax, **fields):
  return cls.config(input_dims=D, num_classes=V, **fields).Instantiate()


def _params():
  layer = _layer(FullSoftmax)
  return base_layer.unbox(layer.init(jax.random.key(0), X, WEIGHTS, IDS))[
    PARAMS
  ]


@pytest.mark.parametrize('gamma', [0.0, 2.0])
@pytest.mark.parametrize('factors', [None, FACTORS])
@pytest.mark.parametrize('by_id', [True, False])
def test_against_numpy(gamma, factors, by_id):
  params = _params()
  layer = _layer(focal_gamma=gamma, class_factors=factors)
  target = {'class_ids': IDS} if by_id else {}
  if not by_id:
    target = {'class_probabilities': PROBABILITIES}
  y = layer.apply({PARAMS: params}, X, WEIGHTS, **target)
  plain = _layer(FullSoftmax).apply({PARAMS: params}, X, WEIGHTS, IDS)
  log_p = np.asarray(plain.log_probs, np.float64)
  share = np.eye(V)[IDS] if by_id else PROBABILITIES
  want = -share * (1 - np.exp(log_p)) ** gamma * log_p * (factors or 1.0)
  want = want.sum(-1)
  np.testing.assert_allclose(y.per_example_xent, want, rtol=1e-4, atol=1e-6)
  total = (want * WEIGHTS).sum()
  np.testing.assert_allclose(y.total_xent, total, rtol=1e-5)
  np.testing.assert_allclose(y.avg_xent, total / WEIGHTS.sum(), rtol=1e-5)
  for name in ('logits', 'per_example_argmax'):
    np.testing.assert_array_equal(y[name], plain[name])
  assert ('accuracy' in y) == by_id


def test_classes_that_are_certain():
  """The gradient of a root at zero does not spoil that of other classes."""
  x = np.array([[80.0, 0.0, 0.0, 0.0]], np.float32)
  layer = FocalSoftmax.config(
    input_dims=D, num_classes=D, focal_gamma=0.5, feed_forward_tpl=None
  ).Instantiate()

  def loss(x):
    return layer.apply({}, x, np.ones([1], np.float32), np.array([1])).avg_xent

  gradient = jax.grad(loss)(x)
  np.testing.assert_allclose(gradient, [[1, -1, 0, 0]], atol=1e-6)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'label_smoothing_prob': 0.1}, 'label_smoothing_prob is 0.1'),
    (
      {'class_factors': [1.0]},
      'class_factors has 1 entries; expected one for each',
    ),
  ],
)
def test_mistakes(fields, message):
  with pytest.raises(errors.UserError, match=message):
    _layer(**fields).init(jax.random.key(0), X, WEIGHTS, IDS)


def test_classes_are_needed():
  with pytest.raises(errors.UserError, match='expected class_ids'):
    _layer().apply({PARAMS: _params()}, X, WEIGHTS)
