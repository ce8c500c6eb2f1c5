"""Tests of bridged tasks of `car` against Lingvo's training."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = (
  'starnet_kitti',
  # What is theirs alone is held against Lingvo by `adaptors/translate/car`.
  pytest.param('starnet_waymo', marks=pytest.mark.exhaustive),
  pytest.param('pillars', marks=pytest.mark.exhaustive),
  pytest.param('center_point', marks=pytest.mark.exhaustive),
)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(family):
  family_parity.check(family_parity.reported(family))
