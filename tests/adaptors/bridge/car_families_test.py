"""Tests of bridged tasks of `car` against Lingvo's training."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = (
  'starnet_kitti',
  pytest.param('starnet_waymo', marks=pytest.mark.slow),
  pytest.param('pillars', marks=pytest.mark.slow),
  pytest.param('center_point', marks=pytest.mark.slow),
)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(family):
  family_parity.check(family_parity.reported(family))
