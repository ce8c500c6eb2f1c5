"""What stages tell, with bubbles that would show.

Shapes: L iterations, S stages.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layer_core.summaries import Summary, SummaryType
from pax_compat.layers.pipelines import pipeline_records
from pax_compat.layers.pipelines.pipeline_schedule import Schedule

SCHEDULE = Schedule(stages=2, microbatches=3, ways=2)
LAYERS, BUBBLE = 4, np.nan


def _told(item, shape=()):
  """Returns [L, S, ...]: `item` of each layer and micro-batch, else bubbles."""
  told = np.full([SCHEDULE.iterations, SCHEDULE.stages, *shape], BUBBLE)
  count = 0
  for t, s in np.ndindex(*told.shape[:2]):
    part, way, is_item = SCHEDULE.at(t, s)
    if is_item:
      told[t, s] = item(int(way) * SCHEDULE.stages + s, int(part))
      count += 1
  assert count == LAYERS * SCHEDULE.microbatches
  return jnp.asarray(told)


def test_losses():
  losses = {'a': {'b': _told(lambda layer, part: 10 * layer + part)}}
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
  told = _told(lambda layer, part: np.full(shape, layer + part), shape)
  found = pipeline_records.summaries_of_layers(
    {'ff': {'x': Summary(told, kind)}}, SCHEDULE, unpack=unpack
  )['ff']
  if unpack:
    assert list(found) == [f'x_{i}' for i in range(LAYERS)]
    values = [summary.value for summary in found.values()]
  else:
    values = found['x'].value
  for layer, value in enumerate(values):
    np.testing.assert_allclose(value, want(layer))
