"""Tests of `benchmarks.family_step`: that both sides train; no times."""

import pytest

from benchmarks import family_step
from pax_compat import errors

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module', params=['native', 'bridge'])
def measured(request):
  """Results of a family whose layers update variables."""
  results = family_step.measure(
    'lenet5_batch_norm', rounds=1, steps=1, translation=request.param
  )
  assert results['kind'].startswith(request.param)
  return results


@pytest.mark.exhaustive
def test_both_train(measured):
  ours, lingvos = measured['losses']['ours'], measured['losses']['lingvo']
  assert len(ours) == len(lingvos) == 2
  assert ours == pytest.approx(lingvos, rel=1e-4)
  assert ours[1] != ours[0]


@pytest.mark.exhaustive
def test_a_line_for_each_family(measured):
  speeds = measured['steps_per_second']
  assert all(speeds[peer] > 0 for peer in ('ours', 'lingvo'))
  text = family_step.table({'lenet5': measured, 'pillars': measured})
  names = [line.split()[0] for line in text.splitlines()[1:]]
  assert names == ['lenet5', 'pillars']


def test_families_have_tasks():
  known = family_step.known_families()
  assert {'asr_wpm', 'mt_rnmt', 'pillars'} <= set(known)
  assert 'sentence_pairs' not in known
  assert family_step.family_of('mt') is family_step.family_of('mt_transformer')


def test_an_unknown_family():
  with pytest.raises(errors.UserError, match='did you mean: lenet5'):
    family_step.family_of('lenet')
