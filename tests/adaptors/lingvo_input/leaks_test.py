"""Inputs that are closed leave nothing behind."""

import json

import pytest

from tests import resources
from tests.adaptors.lingvo_input import leaks
from tests.pax_compat import trainer_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def left(tmp_path_factory):
  """Returns what each kind of reader left behind."""
  folder = tmp_path_factory.mktemp('leaks')
  done = trainer_runs.forked('-m', 'tests.adaptors.lingvo_input.leaks', folder)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('reader', leaks.READERS)
def test_closed_inputs_leave_nothing_behind(left, reader):
  more = resources.Held(**left[reader])
  assert more.python_threads <= 0
  assert more.threads <= 0
  assert more.files <= 0
  # A cycle leaves less than 30 kB, of objects and of native memory.
  assert more.allocated < 30_000 * leaks.CYCLES
  assert more.blocks < 300 * leaks.CYCLES
