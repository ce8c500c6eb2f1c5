"""Tests that runs go on with Pax's losses from what Pax saved.

`tests/pax/record_continued.py` trained, with Pax.
"""

import json
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, learners, optimizers, schedules
from pax_compat.checkpoints import state_paths
from pax_compat.warm_start import optimizer_state, pax_source, sources
from tests.pax import continued


@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
  """The folder of the checkpoints."""
  folder = tmp_path_factory.mktemp('continued')
  with tarfile.open(continued.RECORDED) as archive:
    archive.extractall(folder, filter='data')
  return folder


def _specs(tree, prefix):
  """Returns shapes by path with slashes, on one device."""
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return {
    f'{prefix}{path.replace(".", "/")}': jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=device
    )
    for path, x in state_paths(tree).items()
  }


@pytest.mark.parametrize(
  'folder',
  [*continued.CASES, *(f'{name}.ocdbt' for name in continued.IN_OCDBT)],
)
def test_the_losses_are_those_of_pax(recorded, folder):
  name = folder.removesuffix('.ocdbt')
  config = learners.Learner.config(
    optimizer=continued.config(optimizers, schedules, name)
  )
  learner = config.Instantiate()
  metas = {
    key: base_layer.WeightHParams(one.shape, repeat_prefix=one.stack)
    for key, one in continued.shapes().items()
  }
  weights = {k: jnp.asarray(x) for k, x in continued.weights().items()}
  state = learner.init(weights, weight_metas=metas)

  path, step = pax_source.folder_of(recorded / folder, None)
  assert step == continued.STEP
  source = pax_source.PaxSource(path, step)
  wanted = _specs(state, 'opt_state/')
  loading = optimizer_state.plan(source, wanted, config)
  leaves = optimizer_state.read(source, loading)
  state = jax.tree.unflatten(
    jax.tree.structure(state), [leaves[path] for path in wanted]
  )
  weights = source.read(
    {
      key: sources.Request(source.variables[f'params/{key}'], like)
      for key, like in _specs(weights, '').items()
    }
  )

  @jax.jit
  def update(weights, state, gradients):
    return learner.update(weights, state, gradients, weight_metas=metas)[:2]

  losses = []
  for step in range(continued.STEP, continued.STEPS):
    losses.append(continued.loss(step, weights))
    weights, state = update(weights, state, continued.gradients(step))
  wanted = json.loads((recorded / continued.LOSSES).read_text())[name]
  np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-5)
