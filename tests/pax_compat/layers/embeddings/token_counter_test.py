"""The count of tokens, past the limits of an int32 and a float32."""

import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.base_layer import NON_TRAINABLE, SUMMARIES
from pax_compat.layers.embeddings.token_counter import TokenCounter

PADDINGS = np.array([[0, 0, 1], [0, 0, 0]], np.float32)


def _count(tokens):
  """Returns the variables of a counter with the given count."""
  whole, below = divmod(tokens, 1_000_000)
  values = {'tokens_mm': whole, 'tokens_below_mm': below}
  return {NON_TRAINABLE: {k: np.int32(v) for k, v in values.items()}}


@pytest.mark.parametrize(
  'before', [0, 999_996, 2**31 - 2, 3_000_000_000_000 - 1]
)
def test_counts(before):
  layer = TokenCounter.config().Instantiate()
  _, updated = layer.apply(
    _count(before), PADDINGS, mutable=[NON_TRAINABLE, SUMMARIES]
  )
  assert updated[NON_TRAINABLE] == _count(before + 5)[NON_TRAINABLE]
  summary = updated[SUMMARIES]['total_tokens_mm'].value
  np.testing.assert_allclose(summary, (before + 5) / 1e6, rtol=1e-6)


def test_evaluation_does_not_count():
  layer = TokenCounter.config().Instantiate()
  with base_layer.eval_mode():
    _, updated = layer.apply(_count(7), PADDINGS, mutable=[NON_TRAINABLE])
  assert (
    updated.get(NON_TRAINABLE, _count(7)[NON_TRAINABLE])
    == (_count(7)[NON_TRAINABLE])
  )
