"""Tests of `benchmarks.lm_step`: it compares equal computations; no times."""

import json
import math
import os
import subprocess
import sys

import pytest

from tests import source_tree
from tests.adaptors import native_library

_MODEL = """
from lingvo import model_registry
from lm_tasks.lingvo_params import python_docs


@model_registry.RegisterSingleTaskModel
class Small(python_docs.TransformerLmTiny):
  BUCKET_BATCH_LIMIT = (16, 8, 4)
  MODEL_DIM, HIDDEN_DIM, NUM_HEADS, NUM_LAYERS = 16, 32, 2, 2
"""


@pytest.fixture(scope='module')
def result(tmp_path_factory):
  """Output of a short run of the command, without Lingvo's training."""
  site = tmp_path_factory.mktemp('lm_step')
  (site / 'models').mkdir()
  (site / 'models' / '__init__.py').write_text('')
  (site / 'models' / 'tiny.py').write_text(_MODEL)
  native_library.add_distribution(
    site, '[pax_compat.lingvo_params]\nmytask = models\n'
  )
  path = site / 'result.json'
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'benchmarks.lm_step',
      '--experiment=mytask.tiny.Small',
      '--rounds=1',
      '--steps=1',
      '--nolingvo',
      f'--json={path}',
    ],
    cwd=source_tree.ROOT,
    env=os.environ | {'PYTHONPATH': f'{site}:{source_tree.ROOT}'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout, json.loads(path.read_text())


@pytest.mark.exhaustive
def test_peers_have_the_same_losses(result):
  losses = result[1]['losses']
  assert set(losses) == {'ours', 'bare'}
  ours, bare = losses['ours'], losses['bare']
  assert len(ours) == 6
  assert ours[0] == pytest.approx(bare[0], rel=1e-5)
  assert ours == pytest.approx(bare, rel=1e-4)
  # They train: later losses of the same batches are lower.
  assert all(new < old for old, new in zip(ours[:3], ours[3:], strict=True))


@pytest.mark.exhaustive
def test_result_has_its_fields(result):
  text, found = result
  shapes = {'ids[4,256]', 'ids[8,128]', 'ids[16,64]'}
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
