"""Tests of bridged translation and punctuation LSTMs against Lingvo."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = 'mt_rnmt', 'punctuator'


@pytest.fixture(scope='module')
def reports():
  return family_parity.run(_FAMILIES)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(reports, family):
  family_parity.check(reports[family])
