"""Tests of `joint_failure` with one process; `saving_test` has two."""

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.processes import joint_failure


def test_one_process_raises_at_once():
  failure = joint_failure.JointFailure('the work')
  with pytest.raises(KeyError):
    with failure.held():
      raise KeyError('a')
  assert not failure.exists
  failure.check()
  assert joint_failure.together(lambda: 3, 'the work') == 3


def test_all_of_several_raise(monkeypatch):
  monkeypatch.setattr(joint_failure.jax, 'process_count', lambda: 3)
  failure = joint_failure.JointFailure('the work')
  failure.raise_if(np.zeros(3, bool))
  with pytest.raises(
    errors.UserError, match='the work has failed in process 1, 2; see the log'
  ):
    failure.raise_if(np.array([False, True, True]))
  with failure.held():
    raise SystemExit('first')
  with failure.held():
    raise KeyError('second')
  with pytest.raises(SystemExit, match='first'):
    failure.raise_if(np.array([True, False, False]))
  with pytest.raises(KeyboardInterrupt):
    with failure.held():
      raise KeyboardInterrupt
