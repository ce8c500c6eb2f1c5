"""Tests of bridged tasks of `car` against Lingvo's training."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = 'starnet_kitti', 'starnet_waymo', 'pillars', 'center_point'


@pytest.fixture(scope='module')
def reports():
  return family_parity.run(_FAMILIES)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(reports, family):
  family_parity.check(reports[family])
