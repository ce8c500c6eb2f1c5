"""The benchmark of beam search compares hypotheses, at a tiny size."""

import pytest

from benchmarks import translation_decode


@pytest.mark.exhaustive
def test_both_find_the_same():
  params = translation_decode.transformer(dims=8, vocab_size=32)
  rates = translation_decode.measure(
    params, batch_size=2, steps=3, beams=2, rounds=1
  )
  assert min(rates) > 0
