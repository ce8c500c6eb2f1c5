"""Tests of the arguments of early stopping functions."""

import pytest

from pax_compat.tasks.early_stopping import RunningMode


@pytest.mark.parametrize('train', [False, True])
@pytest.mark.parametrize('evaluated', [False, True])
@pytest.mark.parametrize('decoded', [False, True])
def test_modes(train, evaluated, decoded):
  mode = RunningMode.detect(train, evaluated, decoded)
  assert (mode.has_train, mode.has_eval, mode.has_decode) == (
    train,
    evaluated,
    decoded,
  )
  assert (mode == RunningMode.UNKNOWN) == (not (train or evaluated or decoded))
