"""Tests of `benchmarks.first_step`."""

import pytest

from benchmarks import first_step
from benchmarks.first_step import Start

SIZES = dict(
  NUM_LAYERS=2,
  MODEL_DIMS=8,
  HIDDEN_DIMS=8,
  NUM_HEADS=2,
  VOCAB_SIZE=16,
  PERCORE_BATCH_SIZE=2,
  MAX_SEQ_LEN=4,
)


@pytest.mark.exhaustive
def test_each_process_makes_a_step():
  found = first_step.measure(1, SIZES)
  assert set(found) == {'bare', 'cold', 'warm'}
  for (one,) in found.values():
    assert one.seconds > 0.1
    assert one.megabytes > 100  # JAX alone needs more.


def test_a_process_that_fails_is_an_error_with_its_output():
  with pytest.raises(RuntimeError, match='No module named missing_module'):
    first_step.start(['missing_module'])


def test_a_process_without_a_step_is_an_error():
  with pytest.raises(RuntimeError, match='this failed'):
    first_step.start(['this'])  # Prints a poem.


def test_ratios_are_medians_over_the_rounds():
  """A slow round affects both of its times."""
  found = {
    'bare': [Start(1, 100), Start(2, 100), Start(10, 100)],
    'cold': [Start(3, 300), Start(3, 200), Start(20, 200)],
  }
  result = first_step.summary(found)
  assert result['cold'] == {'seconds': 3, 'megabytes': 200, 'ratio': 2}
  assert result['bare']['ratio'] == 1
  assert first_step.table(result).splitlines()[2].split() == [
    *('cold', '3.00', '200', '2.00')
  ]
