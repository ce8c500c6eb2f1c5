"""Tests of `benchmarks.compile_time`."""

import json

import jax
import pytest

from benchmarks import compile_time
from benchmarks.compile_time import PHASES, STEPS, Step
from tests.pax_compat import launching

SIZES = compile_time.Sizes(
  model_dims=4, hidden_dims=4, num_heads=1, vocab_size=8, batch=2, time=4
)


@pytest.mark.parametrize('step', [Step('repeated', 2), Step('stacked', 2)])
def test_a_step_has_its_number_of_layers(step):
  task = compile_time.task(step, SIZES).Instantiate()
  model = task.model
  batch = compile_time.batch(SIZES)
  weights = jax.eval_shape(model.init, jax.random.key(0), batch)['params']
  stack = weights['lm']['transformer']
  if step.form == 'stacked':
    assert set(stack) == {'x_layers_0', 'x_layers_1'}
  else:
    repeated = jax.tree.leaves(stack['repeat']['sub']['x_layers_0'])
    assert {leaf.shape[0] for leaf in repeated} == {2}


def print_times():
  steps = [Step('repeated', 1), Step('repeated', 2)]
  print(json.dumps(list(compile_time.measure(1, SIZES, steps).items())))


@pytest.mark.exhaustive
def test_every_phase_of_every_step_is_timed():
  # In a separate process, since it clears JAX's caches.
  done = launching.run_function(print_times)
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert [step for step, _ in found] == [['repeated', 1], ['repeated', 2]]
  for _, (seconds,) in found:
    assert set(seconds) == set(PHASES)
    assert all(value > 0 for value in seconds.values())


def test_ratios_are_medians_over_the_rounds():
  """A slow round affects both of its times."""
  totals = dict(
    zip(STEPS, ([1, 2, 10], [3, 2, 11], [4, 8, 4], [8, 16, 8]), strict=True)
  )
  found = {
    step: [dict.fromkeys(PHASES, t / len(PHASES)) for t in times]
    for step, times in totals.items()
  }
  result = compile_time.summary(found)
  assert result['seconds']['4 repeated']['all'] == pytest.approx(2)
  assert result['seconds']['32 repeated']['trace'] == pytest.approx(1)
  assert result['ratios'] == {
    '32 to 4 repeated': pytest.approx(1.1),
    '16 to 4 stacked': pytest.approx(2),
  }
  text = compile_time.table(result)
  assert '32 to 4 repeated: 1.10' in text and '4 stacked' in text
