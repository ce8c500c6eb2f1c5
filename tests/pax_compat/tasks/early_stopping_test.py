"""Tests of the arguments of early stopping functions."""

import pytest

from pax_compat.tasks import early_stopping
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


def test_functions_of_four_arguments_get_four():
  def four(metrics, running_mode, global_step, is_last_ckpt):
    del metrics, running_mode, global_step, is_last_ckpt

  def five(metrics, running_mode, global_step, is_last_ckpt, path):
    del metrics, running_mode, global_step, is_last_ckpt, path

  arguments = ({}, early_stopping.RunningMode.EVAL, 3, False, 'folder')
  assert early_stopping.accepted(four, arguments) == arguments[:4]
  assert early_stopping.accepted(five, arguments) == arguments
  assert early_stopping.accepted(lambda *args: None, arguments) == arguments


def test_names_of_pax():
  measured = {
    'eval_dev': {'log_pplx': 2.0},
    'eval_test_other': {'log_pplx': 3.0},
    'eval_train': {'log_pplx': 1.0},
    'decode_dev': {'num_decoded': 4},
    'train': {'loss': 5.0},
  }
  assert early_stopping.pax_names(measured) == {
    'eval_test_dev/metrics/log_pplx': 2.0,
    'eval_test_other/metrics/log_pplx': 3.0,
    'eval_train/metrics/log_pplx': 1.0,
    'decode_test_dev/num_decoded': 4,
  }
