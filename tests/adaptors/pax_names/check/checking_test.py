"""The checks of one experiment against recordings of Pax."""

import numpy as np
import pytest

from adaptors.pax_names.check import checking, numbers, recording, variables
from lm_tasks.params import c4
from pax_compat import errors
from tests import source_tree

_FOLDER = source_tree.ROOT / 'testdata' / 'pax'


def test_a_task_that_is_built():
  assert checking.task(c4.C4SpmdAdam).result == checking.OK


def test_a_task_that_is_not_built():
  def experiment():
    raise errors.UserError('no such field')

  outcome = checking.task(experiment)
  assert outcome.result == checking.FAILED
  assert 'no such field' in outcome.reasons[0]


def test_what_is_not_recorded():
  assert checking.variables_of(c4.C4SpmdAdam, None).result == checking.NONE
  assert checking.numbers_of(c4.C4SpmdAdam, None).result == checking.NONE


def test_differences_of_variables():
  ours = {'a': ([1], [], 'float32'), 'b': ([2], [], 'float32')}
  pax = variables.of_pax({'a': [[1], [-1], 'float32'], 'c': [[1], [], 'int8']})
  assert variables.differences(ours, pax) == [
    'c is not here',
    'b is not in Pax',
  ]
  assert variables.differences(pax, pax) == []


def _numbers(**changed) -> numbers.Numbers:
  values = dict(
    params={},
    metrics={'total_loss': np.float32(2)},
    weights={'total_loss': np.float32(4)},
    grads={'w': np.array([1.0, 2.0])},
  )
  return numbers.Numbers(**(values | changed))


@pytest.mark.parametrize(
  'changed, line',
  [
    ({}, ''),
    (dict(metrics={}), 'the metric total_loss is missing'),
    (dict(metrics={'total_loss': np.float32(3)}), 'total_loss is 3.0, in Pax'),
    (dict(weights={'total_loss': np.float32(3)}), 'the weight of total_loss'),
    (dict(grads={}), 'only one of both has w'),
    (dict(grads={'w': np.zeros([3])}), 'w is (3,), in Pax (2,)'),
    (dict(grads={'w': np.array([1, 2.1])}), 'the gradient of w differs'),
  ],
)
def test_differences_of_numbers(changed, line):
  found = numbers.differences(_numbers(**changed), _numbers())
  assert len(found) == bool(line)
  assert not line or found[0].startswith(line)


def test_a_folder_without_a_recording(tmp_path):
  with pytest.raises(errors.UserError, match='has no recording of Pax'):
    recording.check(tmp_path)
  recording.check(_FOLDER)


@pytest.mark.slow
def test_numbers_of_pax():
  path = recording.numbers([_FOLDER])['c4.C4SpmdAdam']
  outcome = checking.numbers_of(c4.C4SpmdAdam, path)
  assert outcome == checking.Outcome(checking.OK)
