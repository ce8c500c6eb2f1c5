"""Tests of bridged translation and punctuation LSTMs against Lingvo."""

import pytest

from tests.adaptors.bridge import family_parity

_FAMILIES = (
  'punctuator',
  # The same recurrent layers, and the attention of asr_grapheme.
  pytest.param('mt_rnmt', marks=pytest.mark.exhaustive),
)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(family):
  family_parity.check(family_parity.reported(family))
