"""Tests of `benchmarks.peers`: comparisons and summaries."""

import pytest

from benchmarks import peers
from pax_compat import errors


def test_ratios_are_of_the_same_round():
  # The second round is ten times as slow for both.
  found = peers.summary(
    {'ours': {'s': [2.0, 20.0, 3.0]}, 'bare': {'s': [1.0, 10.0, 1.0]}},
    {'s': 1.0},
  )
  assert found['ratios'] == {'bare': {'s': 2.0, 'all': 2.0}}
  assert found['seconds']['ours'] == {'s': 3.0, 'all': 3.0}


def test_all_is_the_mean_batch():
  seconds = {'ours': {'a': [1.0], 'b': [3.0]}, 'bare': {'a': [1.0], 'b': [1.0]}}
  found = peers.summary(seconds, {'a': 0.75, 'b': 0.25})
  assert found['seconds']['ours']['all'] == 1.5
  assert found['ratios']['bare']['all'] == 1.5


class _FixedPeer:
  def __init__(self, *losses):
    self._losses = list(losses)

  def step(self, shape):
    return self._losses.pop(0)


@pytest.mark.parametrize(
  'other', [(4.0001, 3.0), (4.0, 3.001), (float('nan'), 3.0)]
)
def test_unequal_peers_are_refused(other):
  both = {'ours': _FixedPeer(4.0, 3.0), 'bare': _FixedPeer(*other)}
  with pytest.raises(errors.UserError, match='of bare has the loss'):
    peers.compare(both, ['s'])


def test_peers_with_different_random_numbers():
  def both():
    return {'ours': _FixedPeer(4.0, 3.0), 'bare': _FixedPeer(4.1, 3.2)}

  assert peers.compare(both(), ['s'], tolerance=0.1)['bare'] == [4.1, 3.2]
  with pytest.raises(errors.UserError, match='difference of at most 0.05'):
    peers.compare(both(), ['s'], tolerance=0.05)
