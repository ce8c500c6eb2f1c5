"""Samplers against exact probabilities, by chi-square tests."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pax_compat.decoder_hparams import SampleDecoderHParams
from pax_compat.nested_map import NestedMap
from pax_compat.sampling import sample_streams, token_samplers

DRAWS, V = 20_000, 12
LOGITS = np.random.default_rng(2).normal(size=V) * 1.5


def _exact(temperature, k, p, epsilon):
  """Returns the probabilities of tokens, by their definition."""
  probs = np.exp(LOGITS) / np.exp(LOGITS).sum()
  kept = probs >= epsilon
  order = np.argsort(-probs)
  ranked = [token for token in order if kept[token]][: k or None]
  if p is not None:
    total = probs[ranked].sum()
    # The token with which the total reaches p is the last one.
    before = np.cumsum(probs[ranked]) - probs[ranked]
    ranked = [t for t, b in zip(ranked, before, strict=True) if b <= p * total]
  if temperature == 0:
    ranked = ranked[:1]
  exact = np.zeros(V)
  scaled = np.exp(LOGITS[ranked] / (temperature or 1.0))
  exact[ranked] = scaled / scaled.sum()
  return exact


@functools.partial(jax.jit, static_argnames=('k', 'p', 'epsilon'))
def _draw(seed, temperature, k, p, epsilon):
  sampler = token_samplers.DefaultNextTokenSampler(
    top_k=k, top_p=p, epsilon_p=epsilon
  )
  keys = jax.random.split(jax.random.key(seed), DRAWS)
  logits = jnp.broadcast_to(jnp.asarray(LOGITS, jnp.float32), (DRAWS, V))
  return sampler(
    None,
    logits,
    jnp.full([DRAWS, 1], temperature),
    NestedMap(),
    gumbel_prng_key=keys,
  ).new_ids


@pytest.mark.parametrize(
  ('k', 'p', 'epsilon'),
  [
    *((k, p, 0.0) for k, p in itertools.product([0, 4, V], [None, 0.5, 0.9])),
    (0, None, 0.06),
  ],
)
def test_draws_have_the_exact_probabilities(k, p, epsilon):
  for number, temperature in enumerate((0.0, 0.5, 1.0, 2.0)):
    exact = _exact(temperature, k, p, epsilon)
    drawn = np.bincount(_draw(number, temperature, k, p, epsilon), minlength=V)
    sampler = token_samplers.DefaultNextTokenSampler(
      top_k=k, top_p=p, epsilon_p=epsilon
    )
    np.testing.assert_allclose(
      sampler.probabilities(jnp.asarray(LOGITS)[None], temperature)[0],
      exact,
      atol=1e-5,
    )
    possible = exact > 0
    assert drawn[~possible].sum() == 0
    if possible.sum() > 1:
      test = stats.chisquare(drawn[possible], DRAWS * exact[possible])
      assert test.pvalue > 1e-4, (temperature, drawn, DRAWS * exact)


def test_wrong_probabilities_are_found():
  drawn = np.bincount(_draw(0, 1.0, 0, None, 0.0), minlength=V)
  wrong = _exact(1.1, 0, None, 0.0)
  assert stats.chisquare(drawn, DRAWS * wrong).pvalue < 1e-6


def test_settings_of_the_decoder_override_those_of_the_sampler():
  settings = SampleDecoderHParams(k=3, p=0.5)
  assert settings.next_token_sampler().top_k == 3
  settings = SampleDecoderHParams(k=3, override_next_token_sampler_params=False)
  settings.next_token_sampler_tpl.top_k = 7
  assert settings.next_token_sampler().top_k == 7


def test_rows_may_have_their_own_k_and_p():
  logits = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1]] * 3))
  masked, _, ids = token_samplers.apply_top_k_and_top_p(
    logits,
    4,
    jnp.array([[1.0], [0.5], [1.0]]),
    per_example_top_k=jnp.array([4, 4, 1]),
  )
  np.testing.assert_array_equal((masked > -1e9).sum(axis=1), [4, 2, 1])
  np.testing.assert_array_equal(ids, [[0, 1, 2, 3]] * 3)


def test_streams_depend_on_tokens_only():
  key = jax.random.key(1)
  ids = jnp.array([[1, 2, 0], [2, 1, 0], [1, 2, 3], [1, 2, 9]])
  lengths = jnp.array([2, 2, 3, 2])
  keys = sample_streams.content_keys(key, ids, jnp.arange(3) < lengths[:, None])
  data = np.asarray(jax.random.key_data(keys))
  np.testing.assert_array_equal(data[0], data[3])
  assert len(np.unique(data, axis=0)) == 3
  padded = jnp.pad(ids, ((0, 0), (0, 4)))
  again = sample_streams.content_keys(
    key, padded, jnp.arange(7) < lengths[:, None]
  )
  np.testing.assert_array_equal(jax.random.key_data(again), data)
