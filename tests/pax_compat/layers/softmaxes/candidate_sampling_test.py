"""Samples of classes against the probabilities that they are to have.

Shapes: V classes, S sampled classes, R samples.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.softmaxes import candidate_sampling
from pax_compat.layers.softmaxes.candidate_sampling import Sample


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _samples(count, num_sampled, num_classes):
  keys = jax.random.split(jax.random.key(3), count)
  return jax.lax.map(
    lambda key: candidate_sampling.log_uniform_sample(
      key, num_sampled, num_classes
    ),
    keys,
  )


def _probabilities(num_classes):
  k = np.arange(num_classes, dtype=np.float64)
  return np.log((k + 2) / (k + 1)) / np.log(num_classes + 1)


def _assert_shares(counts, total, expected):
  """Fails where counts are more than 4.5 deviations off."""
  deviation = np.sqrt(expected * (1 - expected) / total)
  assert np.all(np.abs(counts / total - expected) < 4.5 * deviation + 1e-9)


def test_the_first_class_has_the_distribution():
  total, num_classes = 20000, 12
  drawn = np.array(_samples(total, 1, num_classes).classes)[:, 0]
  probabilities = _probabilities(num_classes)
  np.testing.assert_allclose(probabilities.sum(), 1)
  counts = np.bincount(drawn, minlength=num_classes)
  _assert_shares(counts, total, probabilities)


def test_later_classes_are_drawn_from_those_that_are_left():
  total, num_classes = 20000, 4
  samples = _samples(total, 3, num_classes)
  p = _probabilities(num_classes)
  orders, counts = np.unique(
    np.array(samples.classes), axis=0, return_counts=True
  )
  assert len(orders) == 24
  expected = [
    p[a] * p[b] / (1 - p[a]) * p[c] / (1 - p[a] - p[b]) for a, b, c in orders
  ]
  _assert_shares(counts, total, np.array(expected))


def test_the_number_of_tries():
  """It is the first draw, and then geometric, by what has been drawn."""
  total, num_classes = 20000, 4
  samples = _samples(total, 3, num_classes)
  classes, tries = np.array(samples.classes), np.array(samples.num_tries)
  p = _probabilities(num_classes)[classes]
  left = 1 - np.cumsum(p, axis=1)[:, :2]
  expected = 1 + (1 / left).sum(1)
  variance = ((1 - left) / left**2).sum(1)
  error = (tries - expected).sum() / np.sqrt(variance.sum())
  assert abs(error) < 4.5
  assert tries.min() == 3


def test_a_sample_of_all_classes():
  samples = _samples(3, 50, 50)
  for classes in np.array(samples.classes):
    assert sorted(classes) == list(range(50))
  assert np.all(np.array(samples.num_tries) > 50)


def test_rare_classes_of_a_large_vocabulary():
  """Those of the last tenth are equally likely, and none is left out."""
  num_classes, num_sampled = 1_000_000, 20_000
  rng_samples = _samples(8, num_sampled, num_classes)
  classes = np.array(rng_samples.classes)
  for row in classes:
    assert len(set(row)) == num_sampled
  assert 0 <= classes.min() and classes.max() < num_classes
  rare = classes[classes >= 900_000]
  for modulus in (2, 3, 10):
    counts = np.bincount(rare % modulus, minlength=modulus)
    _assert_shares(counts, rare.size, np.full(modulus, 1 / modulus))
  # Each is drawn with its probability.
  expected = _probabilities(num_classes)[900_000:].sum()
  tries = np.array(rng_samples.num_tries).sum()
  # Nearly all of them are drawn no more than once.
  assert abs(rare.size / tries / expected - 1) < 0.1


def test_the_expected_count_is_how_often_a_class_is_in_a_sample():
  """Of draws of a fixed number, by counting."""
  num_classes, num_tries, total = 10, 6, 50000
  rng = np.random.default_rng(0)
  p = _probabilities(num_classes)
  draws = rng.choice(num_classes, [total, num_tries], p=p)
  shares = np.array([(draws == k).any(1).mean() for k in range(num_classes)])
  sample = Sample(jnp.arange(4), jnp.int32(num_tries))
  counts = candidate_sampling.expected_count(
    jnp.arange(num_classes), sample, num_classes
  )
  np.testing.assert_allclose(counts, 1 - (1 - p) ** num_tries, rtol=1e-5)
  np.testing.assert_allclose(counts, shares, atol=0.02)


def test_the_expected_count_where_nothing_was_drawn_again():
  sample = Sample(jnp.arange(4), jnp.int32(4))
  counts = candidate_sampling.expected_count(jnp.arange(10), sample, 10)
  np.testing.assert_allclose(counts, 4 * _probabilities(10), rtol=1e-5)


@pytest.mark.parametrize(
  ('num_sampled', 'num_classes'), [(0, 5), (6, 5), (5, 2**24 + 1)]
)
def test_samples_that_cannot_be_drawn_are_refused(num_sampled, num_classes):
  with pytest.raises(errors.UserError, match=f'{num_sampled} of {num_classes}'):
    candidate_sampling.log_uniform_sample(
      jax.random.key(0), num_sampled, num_classes
    )
