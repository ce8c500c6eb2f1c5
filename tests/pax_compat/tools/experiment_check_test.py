"""Tests of `--check`: the size of an experiment without its devices."""

import jax
import pytest

from lm_tasks.params import lm_cloud
from pax_compat.experiments import resolved
from pax_compat.tools import experiment_check
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.feeding import batch_shapes
from tests.pax_compat import trainer_runs

_CLOUD = 'tasks.lm.params.lm_cloud.'


def lines_of(*arguments: str) -> list[str]:
  """Returns the lines that `--check` prints."""
  done = trainer_runs.main('--check', *arguments)
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()


def test_an_experiment_for_devices_that_are_not_here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  found = lines_of(f'--exp={_CLOUD}LmCloudSpmd2B', '--peak_tflops=275')
  assert found == [
    f'{_CLOUD}LmCloudSpmd2B: checked without data and weights, on simulated'
    ' devices',
    '  parameters        2,137,273,856',
    '  mesh              replica 1 x data 4 x mdl 1, 4 devices',
    '  global batch      32 rows of 1,024: 32,768 tokens per step (by its'
    ' config)',
    '  dtypes            weights in float32, computed in bfloat16',
    '  bytes per device  weights 2.14 GB, optimizer 4.28 GB, together 6.42 GB',
    '  FLOPs per step    4.42e+14, 1.11e+14 per device; 0.402 s at 275 TFLOP/s',
  ]
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'parameters', 'devices'),
  [
    ('LmCloudSpmd1024B', '1,029,999,477,760', 'data 256 x mdl 8, 2048 devices'),
    ('LmCloudSpmdMultislice2B', '2,137,273,856', 'data 4 x mdl 1, 8 devices'),
    ('LmCloudTransformerAdam', '435,752,192', 'data 1, 1 devices'),
  ],
)
def test_other_experiments(name, parameters, devices):
  found = lines_of(f'--exp={_CLOUD}{name}')
  assert found[1].split()[1] == parameters
  assert found[2].endswith(devices)


def test_settings_and_mistakes():
  done = trainer_runs.main(
    f'--exp={_CLOUD}LmCloudSpmd2B',
    '--check',
    '--set=task.model.ici_mesh_shape=[1,3]',
  )
  trainer_runs.assert_mistake(done, 'needs 2 mesh_axis_names')


class Idle(lm_cloud.LmCloudSpmdTest):
  """A mesh of one device; warnings are about larger ones."""


def test_nothing_is_warned_about_one_device():
  found = experiment_check.examine(resolved.resolve(Idle(), name='idle'))
  assert found.warnings == ()
  assert found.sizes.optimizer_bytes > found.sizes.weight_bytes
  assert 'warning' not in found.text()


class Large(lm_cloud.LmCloudSpmdTest):
  """Its stacked weights have more elements than an int32 can count."""

  NUM_LAYERS = 64
  MODEL_DIMS = 4096
  HIDDEN_DIMS = 16384


def test_a_step_of_weights_with_billions_of_elements_can_be_traced():
  experiment = resolved.resolve(Large(), name='large')
  task = experiment.task.Instantiate()
  batch, _ = batch_shapes.of(experiment)
  made = program.create(
    task,
    partitioning.create_mesh(
      task.model.ici_mesh_shape, task.model.mesh_axis_names
    ),
    batch,
  )
  leaves = jax.tree.leaves(made.abstract_state.mdl_vars)
  assert max(x.size for x in leaves) > 2**31
  made.trace_train_step(batch)
