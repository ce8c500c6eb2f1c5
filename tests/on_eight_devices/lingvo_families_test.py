"""Translated Lingvo models on eight devices: fully sharded, tensor parallel."""

import re

import jax
import numpy as np
import pytest

from adaptors.lingvo_parity.batches import nested
from adaptors.translate.tasks import single as task_translation
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.partitioning import automatic
from pax_compat.trainer.reporting import start_lines
from tests.adaptors.bridge.families import asr_wpm, mt_rnmt, mt_transformer

_STEPS = 3
# Weights, of these small ones, that are split.
_LEAST = 64


def _train(config, batches, **settings):
  """Trains on all devices, or on one.

  Args:
    config: of a task.
    batches: of the steps.
    **settings: of its `train`; none for one device.

  Returns:
    The losses, and the lines on sharding.
  """
  config = config.clone()
  config.train.set(**settings)
  devices = jax.devices() if settings else jax.devices()[:1]
  mesh = partitioning.mesh_of_task(config, devices)
  made = program.create(config.Instantiate(), mesh, batches[0])
  state, losses = made.init_state(batches[0]), []
  for batch in batches:
    put = partitioning.global_batch(batch, partitioning.batch_sharding(mesh))
    state, outputs = made.train_step(state, put)
    losses.append(float(outputs['loss']))
  return losses, start_lines.auto_sharding_lines(made)


# The modules, and arguments of their `task_params`.
_FAMILIES = {
  'transformer': (mt_transformer, dict(num_heads=4)),
  'rnmt': (mt_rnmt, dict(decoder_layers=2)),
  'las': (asr_wpm, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'family',
  [
    'transformer',
    pytest.param('rnmt', marks=pytest.mark.exhaustive),
    pytest.param('las', marks=pytest.mark.exhaustive),
  ],
)
def test_models_train_as_on_one_device(family, monkeypatch):
  module, sizes = _FAMILIES[family]
  monkeypatch.setattr(automatic, '_LEAST_ELEMENTS', _LEAST)
  params = module.task_params(**sizes)
  config = task_translation.translate_task(params, family).config
  batches = [nested(module.batch(seed)) for seed in range(_STEPS)]
  losses, _ = _train(config, batches)
  for tensor_parallel in (1, 4):
    settings = dict(auto_sharding=True, tensor_parallel=tensor_parallel)
    found, [line] = _train(config, batches, **settings)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    axes = ['data', 'mdl'][: 1 + (tensor_parallel > 1)]
    shares = re.findall(r'weights over (\w+), ([\d.]+) % of', line)
    assert [axis for axis, _ in shares] == axes, line
    assert all(float(share) > 50 for _, share in shares), line
