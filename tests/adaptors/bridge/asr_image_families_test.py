"""Tests of bridged speech and image tasks against Lingvo's training."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = (
  'lenet5_batch_norm',
  # The same layers but one.
  pytest.param('lenet5', marks=pytest.mark.exhaustive),
  pytest.param('asr_grapheme', marks=pytest.mark.slow),
  # Fewer of the same layers, and sharded embeddings, which mt_transformer has.
  pytest.param('asr_wpm', marks=pytest.mark.exhaustive),
)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(family):
  family_parity.check(family_parity.reported(family))


@pytest.mark.parametrize(
  'family',
  ['lenet5_batch_norm', pytest.param('asr_grapheme', marks=pytest.mark.slow)],
)
def test_moving_statistics_are_compared(family):
  partitioned = family_parity.reported(family)['partitioned']
  for written in partitioned['statistics']:
    assert any(path.endswith('bn.moving_variance') for path in written)
