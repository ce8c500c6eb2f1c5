"""Probabilities and losses of tokens against sums in numpy.

Shapes: B batch, T time, D model dims, V vocabulary.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.softmaxes import full_softmax, sequence_losses
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_transformer as reference

B, T, D, V = 2, 5, 3, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
LOGITS = RNG.normal(size=(B, T, V)).astype(np.float32)
WEIGHTS = np.array([[1, 1, 0.5, 0, 0], [1, 0, 2, 1, 1]], np.float32)
IDS = RNG.integers(0, V, (B, T))
TARGETS = special.softmax(RNG.normal(size=(B, T, V)), -1).astype(np.float32)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_predictions(dtype):
  """They are computed in float32, and have the dtype of the logits."""
  logits = jnp.asarray(LOGITS * 20, dtype)
  output = sequence_losses.predictions(logits)
  assert {x.dtype for x in output.values()} == {jnp.dtype(dtype)}
  want = special.log_softmax(np.asarray(logits, np.float64), -1)
  tolerance = 1e-5 if dtype == jnp.float32 else 5e-3
  for name, value in (('log_probs', want), ('probs', np.exp(want))):
    got = np.asarray(output[name], np.float64)
    np.testing.assert_allclose(got, value, rtol=tolerance, atol=1e-6)


def _xent(weights, **labels):
  layer = full_softmax.FullSoftmax.config(
    input_dims=D, num_classes=V
  ).Instantiate()
  given = dict(class_weights=weights, class_ids=IDS)
  params = reference.random_weights(layer, X, **given)
  labels = NestedMap(class_weights=weights, **labels)
  softmax = layer.bind({PARAMS: params})
  output = sequence_losses.xent(softmax, X, labels)
  logits = reference.dense(X, params['logits_ffn'])
  return output, special.log_softmax(np.asarray(logits, np.float64), -1)


@pytest.mark.parametrize('kind', ['class_ids', 'class_probabilities'])
def test_the_loss(kind):
  labels = {'class_ids': IDS, 'class_probabilities': TARGETS}[kind]
  output, log_probs = _xent(WEIGHTS, **{kind: labels})
  target = np.eye(V)[IDS] if kind == 'class_ids' else TARGETS
  each = -(target * log_probs).sum(-1) * WEIGHTS
  np.testing.assert_allclose(output.per_token_xent, each, rtol=1e-5)
  np.testing.assert_allclose(output.per_sequence_xent, each.sum(-1), rtol=1e-5)
  mean = each.sum() / WEIGHTS.sum()
  np.testing.assert_allclose(output.total_loss, mean, rtol=1e-5)


def test_a_batch_in_which_nothing_counts_has_no_loss():
  output, _ = _xent(np.zeros_like(WEIGHTS), class_ids=IDS)
  assert output.total_loss == 0


@pytest.mark.parametrize('weights', [WEIGHTS, np.zeros_like(WEIGHTS)])
def test_negative_entropy(weights):
  output = NestedMap(logits=jnp.asarray(LOGITS))
  got = sequence_losses.negative_entropy(output, weights)
  log_probs = special.log_softmax(LOGITS.astype(np.float64), -1)
  each = (np.exp(log_probs) * log_probs).sum(-1) * weights
  want = each.sum() / max(weights.sum(), 1)
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_entropy_needs_logits():
  with pytest.raises(errors.UserError, match='expected chunk_size=0'):
    sequence_losses.negative_entropy(NestedMap(), WEIGHTS)
