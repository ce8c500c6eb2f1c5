"""Losses and summaries of stages; a leaked bubble would be NaN.

Shapes: L iterations, S stages.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layer_core.summaries import Summary, SummaryType
from pax_compat.layers.pipelines import pipeline_records
from pax_compat.layers.pipelines.pipeline_schedule import Schedule

SCHEDULE = Schedule(stages=2, microbatches=3, repeats=2)
LAYERS, BUBBLE = 4, np.nan


def _records(value, shape=()):
  """Returns [L, S, ...]: `value` of each layer and microbatch, else bubbles."""
  records = np.full([SCHEDULE.iterations, SCHEDULE.stages, *shape], BUBBLE)
  count = 0
  for t, s in np.ndindex(*records.shape[:2]):
    microbatch, repeat, is_valid = SCHEDULE.at(t, s)
    if is_valid:
      records[t, s] = value(int(repeat) * SCHEDULE.stages + s, int(microbatch))
      count += 1
  assert count == LAYERS * SCHEDULE.microbatches
  return jnp.asarray(records)


def test_losses():
  losses = {
    'a': {'b': _records(lambda layer, microbatch: 10 * layer + microbatch)}
  }
  found = pipeline_records.mean_losses(losses, SCHEDULE)
  np.testing.assert_allclose(found['a']['b'], 0 + 10 + 20 + 30 + LAYERS * 1)


@pytest.mark.parametrize(
  'kind,shape,want',
  [
    (SummaryType.SCALAR, (), lambda layer: layer + 1),
    (SummaryType.HISTOGRAM, (), lambda layer: [layer, layer + 1, layer + 2]),
    (
      SummaryType.HISTOGRAM,
      (2,),
      lambda layer: np.repeat([layer, layer + 1, layer + 2], 2),
    ),
    (SummaryType.TEXT, (5,), lambda layer: [layer] * 5),
    (
      SummaryType.IMAGE,
      (1, 2, 2, 1),
      lambda layer: np.repeat([layer, layer + 1, layer + 2], 4).reshape(
        3, 2, 2, 1
      ),
    ),
  ],
)
@pytest.mark.parametrize('unpack', [False, True])
def test_summaries(kind, shape, want, unpack):
  records = _records(
    lambda layer, microbatch: np.full(shape, layer + microbatch), shape
  )
  found = pipeline_records.summaries_of_layers(
    {'ff': {'x': Summary(records, kind)}}, SCHEDULE, unpack=unpack
  )['ff']
  if unpack:
    assert list(found) == [f'x_{i}' for i in range(LAYERS)]
    values = [summary.value for summary in found.values()]
  else:
    values = found['x'].value
  for layer, value in enumerate(values):
    np.testing.assert_allclose(value, want(layer))
