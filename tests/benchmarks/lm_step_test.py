"""Tests of `benchmarks.lm_step`: that it compares equal things; no times."""

import json
import math
import os
import subprocess
import sys

import pytest

from benchmarks import lm_step
from pax_compat import errors
from tests import source_tree


@pytest.fixture(scope='module', params=['plain', 'jax.nn'])
def result(request, tmp_path_factory):
  """What a short run of the command writes, without Lingvo's own training."""
  path = tmp_path_factory.mktemp('lm_step') / 'result.json'
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'benchmarks.lm_step',
      '--rounds=1',
      '--steps=1',
      '--nolingvo',
      f'--attention={request.param}',
      f'--json={path}',
    ],
    cwd=source_tree.ROOT,
    env=os.environ | {'PYTHONPATH': str(source_tree.ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout, json.loads(path.read_text())


def test_peers_have_the_same_losses(result):
  losses = result[1]['losses']
  assert set(losses) == {'ours', 'bare'}
  ours, bare = losses['ours'], losses['bare']
  assert len(ours) == 6
  assert ours[0] == pytest.approx(bare[0], rel=1e-5)
  assert ours == pytest.approx(bare, rel=1e-4)
  # They train: later losses of the same batches are lower.
  assert all(new < old for old, new in zip(ours[:3], ours[3:], strict=True))


def test_result_has_its_fields(result):
  text, found = result
  shapes = {'ids[16,256]', 'ids[32,128]', 'ids[64,64]'}
  assert set(found) == {
    'experiment',
    'rounds',
    'steps',
    'attention',
    'cpus',
    'devices',
    'losses',
    'shares',
    'seconds',
    'ratios',
  }
  assert set(found['shares']) == shapes
  assert math.isclose(sum(found['shares'].values()), 1.0)
  assert set(found['seconds']) == {'ours', 'bare'}
  assert set(found['ratios']) == {'bare'}
  for times in (*found['seconds'].values(), *found['ratios'].values()):
    assert set(times) == shapes | {'all'}
    assert all(t > 0 for t in times.values())
  assert len(text.splitlines()) == 5


def test_ratios_are_of_the_same_round():
  # The second round is ten times as slow for both.
  found = lm_step.summary(
    {'ours': {'s': [2.0, 20.0, 3.0]}, 'bare': {'s': [1.0, 10.0, 1.0]}},
    {'s': 1.0},
  )
  assert found['ratios'] == {'bare': {'s': 2.0, 'all': 2.0}}
  assert found['seconds']['ours'] == {'s': 3.0, 'all': 3.0}


def test_all_is_the_mean_batch():
  seconds = {'ours': {'a': [1.0], 'b': [3.0]}, 'bare': {'a': [1.0], 'b': [1.0]}}
  found = lm_step.summary(seconds, {'a': 0.75, 'b': 0.25})
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
  peers = {'ours': _FixedPeer(4.0, 3.0), 'bare': _FixedPeer(*other)}
  with pytest.raises(errors.UserError, match='of bare has the loss'):
    lm_step.compare(peers, ['s'])
