"""A train step is compiled for TPUs that are not there."""

import importlib.util

import pytest

from tests.pax_compat import trainer_runs

_SMALL = (
  '--exp=tasks.lm.params.lm_cloud.LmCloudSpmdTest',
  '--set=task.model.ici_mesh_shape=[1,4,1]',
  '--compile_only',
)


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None, reason='needs libtpu'
)
def test_a_step_is_compiled_for_a_pod():
  done = trainer_runs.main(*_SMALL, '--topology=v4:2x2x1')
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  labels = {line[2:20].strip(): line[20:] for line in lines}
  assert 'v4:2x2x1, 4 devices' in labels['topology']
  assert 'fits' in labels['memory per device']
  assert 'all-gather (data)' in done.stdout
  assert 'MFU' in labels['roofline']


def test_the_topology_is_required_and_checked():
  done = trainer_runs.main(*_SMALL, '--topology=v7:2x2')
  trainer_runs.assert_mistake(done, "unknown kind of TPU 'v7'")
