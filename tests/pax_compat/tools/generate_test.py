"""Tests of the command line of `generate`; what it prints is in other tests."""

import pytest
from absl import flags
from absl.testing import flagsaver

from pax_compat import errors
from pax_compat.tools import generate


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--prompt=a'], '--job_log_dir is required'),
    (['--job_log_dir=a'], '--prompt is required'),
    (['--job_log_dir=/no/run', '--prompt=a'], '/no/run has no experiment.json'),
  ],
)
def test_invalid_flags(arguments, message):
  with flagsaver.flagsaver():
    rest = flags.FLAGS(['generate', *arguments])
    with pytest.raises(errors.UserError, match=message):
      generate.main(rest)
