"""Entropies of codes against their definition."""

import itertools

import jax
import numpy as np
import pytest

from pax_compat.layers.video import code_entropy
from tests.pax.layer_cases import normal


def _entropy(probs):
  return -np.sum(probs * np.log(probs + 1e-5), axis=-1)


@pytest.mark.parametrize('weight', [1.0, 0.3])
def test_of_codes(weight):
  affinity = normal(6, 4)
  probs = np.asarray(jax.nn.softmax(affinity / 0.5))
  expected = np.mean(_entropy(probs)) - weight * _entropy(probs.mean(0))
  loss = code_entropy.entropy_loss(affinity, 'softmax', 0.5, weight)
  np.testing.assert_allclose(loss, expected, rtol=1e-3)


def test_of_the_most_probable_codes():
  affinity = np.float32([[3, 0], [0, 3], [0, 3]])
  loss = code_entropy.entropy_loss(affinity, 'argmax', 1.0, 1.0)
  # Crossed with the probabilities: one code is not certain.
  of_one = np.log(1 + np.exp(-3))
  np.testing.assert_allclose(
    loss, of_one - _entropy(np.array([1 / 3, 2 / 3])), rtol=1e-4
  )


@pytest.mark.parametrize('size', [1, 2, 4])
def test_of_groups(size):
  affinity = normal(6, 4, 2)
  probs = np.asarray(jax.nn.softmax(affinity))
  groups = [range(i, i + size) for i in range(0, 4, size)]
  if size == 2:
    groups += [(0, 2), (1, 3)]
  of_groups = []
  for group in groups:
    joint = [
      np.prod([probs[:, i, v] for i, v in zip(group, values, strict=True)], 0)
      for values in itertools.product((0, 1), repeat=size)
    ]
    of_groups.append(_entropy(np.mean(joint, axis=1)))
  expected = _entropy(probs).sum(-1).mean() - 0.3 * np.mean(of_groups)
  loss = code_entropy.factorized_entropy_loss(affinity, size, 1.0, 0.3)
  np.testing.assert_allclose(loss, expected, rtol=1e-3)
