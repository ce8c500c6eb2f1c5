"""Additive attention against numpy.

Shapes: B batch, T time, S source time.
"""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.attentions.additive_attention import AdditiveAttention

B, T, S = 2, 3, 4
RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=[B, T, 5]).astype(np.float32)
SOURCE = RNG.normal(size=[B, S, 6]).astype(np.float32)
CONTEXT = RNG.normal(size=[B, S, 7]).astype(np.float32)
WEIGHTS = {
  'source_var': RNG.normal(size=[6, 8]).astype(np.float32),
  'query_var': RNG.normal(size=[5, 8]).astype(np.float32),
  'hidden_var': RNG.normal(size=[8]).astype(np.float32),
}


def _layer(**fields):
  return AdditiveAttention.config(
    source_dim=6, query_dim=5, hidden_dim=8, **fields
  ).Instantiate()


def _probs(visible):
  probs = np.zeros([B, T, S])
  for b, t in np.ndindex(B, T):
    query = QUERY[b, t] @ WEIGHTS['query_var']
    for s in np.flatnonzero(visible[b, t]):
      hidden = np.tanh(SOURCE[b, s] @ WEIGHTS['source_var'] + query)
      probs[b, t, s] = np.exp(hidden @ WEIGHTS['hidden_var'])
  return probs / probs.sum(-1, keepdims=True)


@pytest.mark.parametrize('masked', [False, True])
def test_against_numpy(masked):
  visible = np.ones([B, T, S], bool)
  if masked:
    visible = RNG.random([B, T, S]) < 0.5
    visible[..., 1] = True
  y, probs = _layer().apply(
    {PARAMS: WEIGHTS},
    QUERY,
    SOURCE,
    CONTEXT,
    mask=visible[:, None] if masked else None,
  )
  want = _probs(visible)
  np.testing.assert_allclose(probs, want, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(y, want @ CONTEXT, rtol=1e-4, atol=1e-5)


def test_a_target_that_sees_nothing_attends_to_all_alike():
  _, probs = _layer().apply(
    {PARAMS: WEIGHTS},
    QUERY,
    SOURCE,
    CONTEXT,
    mask=np.zeros([1, 1, 1, S], bool),
  )
  np.testing.assert_allclose(probs, np.full([B, T, S], 1 / S))


def test_dropout_of_what_is_attended_to():
  layer = _layer(atten_dropout_prob=0.5)
  given = ({PARAMS: WEIGHTS}, QUERY, SOURCE, CONTEXT)
  rngs = {base_layer.RANDOM: jax.random.key(0)}
  _, probs = layer.apply(*given, rngs=rngs)
  kept, want = np.asarray(probs) != 0, _probs(np.ones([B, T, S], bool))
  assert 0 < kept.mean() < 1
  np.testing.assert_allclose(probs[kept], 2 * want[kept], rtol=1e-4)
  with base_layer.eval_mode(True):
    _, probs = layer.apply(*given)
  np.testing.assert_allclose(probs, want, rtol=1e-4)


def test_a_mask_of_the_wrong_kind():
  for mask in (np.ones([B, T, S], bool), np.ones([B, 1, T, S])):
    with pytest.raises(errors.UserError, match='expected booleans'):
      _layer().apply({PARAMS: WEIGHTS}, QUERY, SOURCE, CONTEXT, mask=mask)
