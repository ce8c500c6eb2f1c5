"""Tests of `pax_compat.cli.process_flags`; a run has its own, in `run_test`."""

import re

import pytest
from absl import flags
from absl.testing import flagsaver

from pax_compat import errors
from pax_compat.cli import process_flags
from pax_compat.processes import clusters, rendezvous
from tests.pax_compat import launching


@pytest.fixture(autouse=True)
def parsed():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (dict(num_hosts=2), '--server_addr and --host_idx are missing; expected'),
    (dict(server_addr='h:1', host_idx=0), '--num_hosts is missing; expected'),
    (
      dict(server_addr='h:1', num_hosts=2, host_idx=2),
      '--host_idx is 2; expected one of --num_hosts=2 processes, from 0 to 1',
    ),
  ],
)
def test_contradictory_flags_are_refused(given, message):
  with flagsaver.flagsaver(**given):
    with pytest.raises(errors.UserError, match=re.escape(message)):
      process_flags.check()


def test_a_single_process_does_not_wait():
  process_flags.join(clusters.detect, rendezvous.meet)


def print_why_it_cannot_join():
  flags.FLAGS(['program', '--multiprocess'])
  try:
    process_flags.join(clusters.detect, rendezvous.meet)
  except errors.UserError as e:
    print(e)


def test_without_a_cluster_joining_is_an_error():
  done = launching.run_function(print_why_it_cannot_join)
  assert done.stdout.startswith('cannot join the other processes: '), done
