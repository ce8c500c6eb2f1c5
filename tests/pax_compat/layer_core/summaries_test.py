"""Summaries on their way out of a step."""

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layer_core import summaries
from pax_compat.layer_core.summaries import SummaryType


def test_what_is_aggregated_over_devices_anyway():
  assert SummaryType.AGGREGATE_SCALAR is SummaryType.SCALAR
  assert SummaryType.AGGREGATE_IMAGE is SummaryType.IMAGE


@pytest.mark.parametrize('name', ['AUDIO', 'VIDEO'])
def test_types_that_nothing_would_write(name):
  with pytest.raises(
    errors.UserError,
    match=f'{name} is not supported; .* SCALAR, HISTOGRAM, IMAGE, TEXT$',
  ):
    summaries.as_value(np.zeros([2, 3]), SummaryType[name])


def test_a_text_is_its_bytes():
  value = summaries.as_value('größe', SummaryType.TEXT)
  assert isinstance(value, jax.Array)
  assert np.asarray(value).tobytes().decode() == 'größe'


def test_a_summary_is_one_value():
  summary = summaries.Summary(np.ones(2), SummaryType.HISTOGRAM)
  assert summaries.is_summary(summary) and not summaries.is_summary(np.ones(2))
  [leaf] = jax.tree.leaves(summary)
  assert leaf is summary.value


def test_keys_of_pax():
  kind = SummaryType.SCALAR
  assert summaries.key_of('loss', kind) == 'loss'
  summaries.use_pax_keys()
  try:
    assert summaries.key_of('loss', kind) == 'loss_scalar'
    assert summaries.name_of('layer/loss_scalar', kind) == 'layer/loss'
    one = summaries.key_of_layer('loss_scalar', kind, 3, 'stage1')
    assert one == 'loss.stage1_scalar'
    often = summaries.Summary(1.0, kind)
    seldom = summaries.Summary(2.0, kind, verbosity=3)
    kept = summaries.stored({'often_scalar': often, 'seldom_scalar': seldom})
    assert kept == {'often_scalar': 1.0, 'seldom_scalar': seldom}
    assert summaries.typed({'layer': kept}) == {
      'layer': {'often_scalar': often, 'seldom_scalar': seldom}
    }
    with pytest.raises(errors.UserError, match="'often' does not end with its"):
      summaries.typed({'often': 1.0})
  finally:
    summaries.use_pax_keys(False)
  assert summaries.name_of('layer/loss_scalar', kind) == 'layer/loss_scalar'
  assert summaries.key_of_layer('loss', kind, 3, 'stage1') == 'loss_3'
