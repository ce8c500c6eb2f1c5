"""Tests of bridged translation and punctuation LSTMs against Lingvo."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = (
  'punctuator',
  pytest.param('mt_rnmt', marks=pytest.mark.slow),
)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(family):
  family_parity.check(family_parity.reported(family))
