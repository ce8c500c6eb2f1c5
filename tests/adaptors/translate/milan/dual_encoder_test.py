"""Dual encoders of milan, translated, against Lingvo's, run for real."""

import pytest

from tests.adaptors.bridge.families import milan
from tests.adaptors.translate import task_parity

# A bias of keys adds the same to all logits.
_KEYS = '.source_proj_b'


@pytest.mark.slow
def test_five_steps_of_two_texts():
  batches = [milan.batch(seed) for seed in range(5)]
  task_parity.check(
    milan.task_params(), batches, static_shapes=True, without_gradient=_KEYS
  )
