"""Tests of `benchmarks.bridged_step`: that both sides train; no times."""

import pytest

from benchmarks import bridged_step
from pax_compat import errors


@pytest.fixture(scope='module')
def measured():
  """Results of a family whose layers update variables."""
  return bridged_step.measure('lenet5_batch_norm', rounds=1, steps=1)


def test_both_train(measured):
  ours, lingvos = measured['losses']['ours'], measured['losses']['lingvo']
  assert len(ours) == len(lingvos) == 2
  assert ours == pytest.approx(lingvos, rel=1e-4)
  assert ours[1] != ours[0]


def test_a_line_for_each_family(measured):
  speeds = measured['steps_per_second']
  assert all(speeds[peer] > 0 for peer in ('ours', 'lingvo'))
  text = bridged_step.table({'lenet5': measured, 'pillars': measured})
  names = [line.split()[0] for line in text.splitlines()[1:]]
  assert names == ['lenet5', 'pillars']


def test_families_have_tasks():
  known = bridged_step.known_families()
  assert {'asr_wpm', 'mt_rnmt', 'pillars'} <= set(known)
  assert 'sentence_pairs' not in known


def test_an_unknown_family():
  with pytest.raises(errors.UserError, match='did you mean: lenet5'):
    bridged_step.family_of('lenet')
