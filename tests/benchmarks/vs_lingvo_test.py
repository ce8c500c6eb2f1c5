"""Tests of `benchmarks.vs_lingvo`: that both sides train; no times."""

import dataclasses

import pytest

from benchmarks import vs_lingvo
from pax_compat import errors

_TINY = dict(EMBEDDING_DIM=4, RNN_STATE_DIM=8, VOCAB_SIZE=64, NUM_SAMPLED=32)


@pytest.fixture(scope='module')
def measured():
  """Results of a round of a tiny LSTM."""
  [lstm] = vs_lingvo.chosen(['lstm-32'])
  case = dataclasses.replace(
    lstm, sizes={**lstm.sizes, **_TINY}, synthetic_shape=(4, 6)
  )
  return vs_lingvo.measure(case, rounds=1, steps=1)


@pytest.mark.exhaustive
def test_both_train(measured):
  ours, lingvos = measured['losses']['ours'], measured['losses']['lingvo']
  assert len(ours) == len(lingvos) == 2
  assert ours == pytest.approx(lingvos, rel=0.1)
  assert ours[1] != ours[0] and lingvos[1] != lingvos[0]


@pytest.mark.exhaustive
def test_rates_of_all_shapes(measured):
  shapes = {'ids[4,6]', 'all'}
  assert set(measured['ratios']) == shapes
  for peer in ('ours', 'lingvo'):
    speeds = measured['steps_per_second'][peer]
    assert set(speeds) == shapes
    assert all(speed > 0 for speed in speeds.values())
  text = vs_lingvo.table({'lstm': measured})
  assert [line.split()[:2] for line in text.splitlines()[1:]] == [
    ['lstm', 'ids[4,6]'],
    ['lstm', 'all'],
  ]
  assert text.splitlines()[-1].endswith(' 1.5')


def test_a_ratio_is_of_speeds():
  summary = {
    'shares': {'s': 1.0},
    'seconds': {'ours': {'s': 0.5, 'all': 0.5}, 'lingvo': {'s': 2, 'all': 2}},
    'ratios': {'lingvo': {'s': 0.25, 'all': 0.25}},
  }
  found = vs_lingvo.rates(summary)
  assert found['ratios'] == {'s': 4, 'all': 4}
  assert found['steps_per_second']['ours'] == {'s': 2, 'all': 2}


@pytest.mark.parametrize('model', ['transformer', 'lstm'])
def test_three_sizes_of_each_model(model):
  cases = [c for c in vs_lingvo.CASES if c.name.startswith(model)]
  assert len({tuple(c.sizes.items()) for c in cases}) == len(cases) == 3


def test_an_unknown_case():
  with pytest.raises(errors.UserError, match='did you mean: lstm-64'):
    vs_lingvo.chosen(['lstm64'])
