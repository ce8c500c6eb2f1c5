"""Tests of the aggregation of results over batches."""

import numpy as np
import pytest

from pax_compat.trainer.evaluating import batch_results
from tests.pax_compat.trainer import lines


@pytest.mark.parametrize('count', [1, 2, 3])
def test_outputs_are_taken_one_batch_late(count):
  calls = []

  def step(number, batch):
    calls.append(('step', number, batch))
    return batch.upper()

  def take(batch, outputs):
    calls.append(('take', batch, outputs))

  def before(number, outputs):
    calls.append(('before', number, outputs))

  batches = 'abc'[:count]
  assert batch_results.one_late(batches, step, take, before=before) == count
  assert calls == [
    ('before', 1, None),
    ('step', 0, 'a'),
    ('before', 2, 'A'),
    ('step', 1, 'b'),
    ('take', 'a', 'A'),
    ('before', 3, 'B'),
    ('step', 2, 'c'),
    ('take', 'b', 'B'),
  ][: 2 if count == 1 else 3 * count - 1] + [
    ('take', batches[-1], batches[-1].upper())
  ]


def test_an_error_of_a_step_ends_the_loop():
  taken = []

  def step(number, batch):
    if number == 2:
      raise ArithmeticError('no')
    return number

  with pytest.raises(ArithmeticError):
    batch_results.one_late('abcd', step, lambda *args: taken.append(args))
  assert taken == [('a', 0)]


def test_outputs_of_two_batches():
  made = lines.make_program(lines.task(model=dict(has_summaries=True)))
  mdl_vars = made.init_state(lines.rows(0)).mdl_vars
  aggregator = batch_results.StepAggregator(made)
  batches = [lines.rows(first) for first in (0, 4)]
  for number, batch in enumerate(batches):
    aggregator.add(made.eval_step(mdl_vars, batch, np.uint32(number)))
  assert aggregator.count == 2
  result = aggregator.result()
  first = np.mean([batch.x[0, 0] for batch in batches])
  np.testing.assert_allclose(result['first'], first, rtol=1e-6)
  # Non-scalar summaries are those of the first batch.
  picture = result['picture'].value[0, :, :, 0]
  np.testing.assert_allclose(picture, batches[0].x, rtol=1e-6)
  numbers = batch_results.numbers(result)
  assert numbers['rows'] == 2 * lines.BATCH and 'picture' not in numbers
