"""Tests of the flags that limit what a run can lose."""

import pytest
from absl import flags
from absl.testing import flagsaver

from pax_compat.cli import guard_flags
from pax_compat.trainer import run_options

TIMEOUTS = {
  'input_timeout_minutes': 'input_timeout_seconds',
  'step_timeout_minutes': 'step_timeout_seconds',
}


@pytest.fixture(autouse=True)
def _parsed():
  with flagsaver.flagsaver():
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()
    yield


@pytest.mark.parametrize(('flag', 'field'), TIMEOUTS.items())
def test_zero_is_no_limit(flag, field):
  assert guard_flags.options()[field] == 3600
  for given, seconds in ((0.1, 6), (0, None)):
    flags.FLAGS[flag].value = given
    assert guard_flags.options()[field] == seconds


@pytest.mark.parametrize('flag', TIMEOUTS)
def test_a_negative_limit_is_refused(flag):
  with pytest.raises(flags.IllegalFlagValueError, match=f'--{flag}=-1'):
    flags.FLAGS[flag].parse('-1')


def test_the_defaults_are_those_of_the_options():
  # The watchdog ends the process, so only that of a command has one.
  defaults = run_options.RunOptions(step_timeout_seconds=3600.0)
  for name, value in guard_flags.options().items():
    assert getattr(defaults, name) == value
