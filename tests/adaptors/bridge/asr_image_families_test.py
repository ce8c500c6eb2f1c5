"""Tests of bridged speech and image tasks against Lingvo's training."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = 'lenet5', 'lenet5_batch_norm', 'asr_grapheme', 'asr_wpm'


@pytest.fixture(scope='module')
def reports():
  return family_parity.run(_FAMILIES)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(reports, family):
  family_parity.check(reports[family])


@pytest.mark.parametrize('family', ['lenet5_batch_norm', 'asr_grapheme'])
def test_moving_statistics_are_compared(reports, family):
  for written in reports[family]['partitioned']['statistics']:
    assert any(path.endswith('bn.moving_variance') for path in written)
