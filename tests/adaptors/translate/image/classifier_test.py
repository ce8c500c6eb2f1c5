"""LeNet5, translated, against Lingvo's, run for real."""

import numpy as np
import pytest

from pax_compat import errors
from tests.adaptors.bridge.families import lenet5
from tests.adaptors.translate import task_parity, tiny_task


def _by_weight(metrics):
  """Returns Lingvo's metrics, weighted by images that are not padding."""
  assert metrics.pop('num_preds') == (8, 1)
  return {name: (value, 7) for name, (value, _) in metrics.items()}


@pytest.mark.slow
@pytest.mark.parametrize('batch_norm', [False, True])
def test_twenty_steps(batch_norm):
  """With batch norm also its moving statistics, which evaluations use."""
  params = lenet5.task_params(batch_norm=batch_norm)
  params.eval.samples_per_summary = 8
  batches = [lenet5.batch(seed) for seed in range(20)]
  theirs = task_parity.check(params, batches, expected=_by_weight)
  for path, value in theirs.last.items():
    assert np.any(value != theirs.first[path]), path
  assert ('conv[1].bn.moving_mean' in theirs.last) == batch_norm


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('window_shapes', [(2, 2)]),
    ('fc_tpl.weight_norm', True),
    ('softmax.apply_pruning', True),
  ],
)
def test_what_is_refused(field, value):
  params = lenet5.task_params()
  params.Set(**{field: value})
  with pytest.raises(errors.UserError, match=field):
    tiny_task.translate(params)
