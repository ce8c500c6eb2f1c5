"""Comparisons of a task with randomness of its own, and without a result."""

import numpy as np
import pytest

from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

from adaptors.experiments import lingvo_source  # noqa: E402
from adaptors.lingvo_parity import reporting, running  # noqa: E402
from pax_compat import experiment_sources  # noqa: E402

_MODULE = 'tests.adaptors.lingvo_parity.user_experiments'
_NAME = f'{_MODULE}.Zoneout'
_OPTIONS = running.Options(steps=2, is_synthetic=True)


@pytest.fixture(scope='module')
def compared():
  """A comparison, Lingvo's results, and the lines that were printed."""
  experiment = lingvo_source.find(_NAME, experiment_sources.SourceOptions())
  lines, found = [], []

  def lingvos(is_bridged):
    assert is_bridged
    found.append(
      running.run_lingvo(experiment, _NAME, _OPTIONS, is_bridged=is_bridged)
    )
    return found[0]

  compared = running.run(experiment, _NAME, _OPTIONS, lingvos, lines.append)
  return compared, found[0], lines


def test_both_sides_get_the_same_numbers(compared):
  comparison, lingvo, _ = compared
  assert not comparison.departing and not comparison.random
  assert len(comparison.steps) == 2 and comparison.gradients
  assert reporting.verdict(comparison) == 'Lingvo and its translation agree'
  assert not lingvo.run.is_random and not lingvo.run.random_ops


def test_what_draws_random_numbers_is_named(compared):
  _, lingvo, lines = compared
  functions = {function for function, _ in lingvo.run.fixed}
  assert functions == {'random_uniform', 'stateless_random_normal_v2'}
  [line] = [line for line in lines if 'fixed numbers' in line]
  assert 'random_uniform in ' in line and 'zoneout' in line


def test_batches_have_the_fields_of_the_input(compared):
  _, lingvo, _ = compared
  assert [list(batch) for batch in lingvo.batches] == [['x'], ['x']]
  first, second = (batch['x'] for batch in lingvo.batches)
  assert first.shape == (4, 3) and first.dtype == np.float32
  assert np.any(first != second)
