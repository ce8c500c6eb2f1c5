"""What is found out, and the order in which it is shown."""

import pytest

from adaptors.migrate.findings import Status, by_what_to_do
from tests.adaptors.migrate import found


def test_what_does_not_run_is_first_and_what_needs_most_is_late():
  experiments = [
    found.experiment('b', Status.NATIVE),
    found.experiment('a', Status.NATIVE),
    found.experiment('far', Status.BRIDGED, issues=3),
    found.experiment('near', Status.BRIDGED, issues=1),
    found.experiment('partly', Status.PARTLY, issues=1),
    found.experiment('broken', Status.IMPOSSIBLE),
  ]
  ordered = [e.name for e in by_what_to_do(experiments)]
  assert ordered == ['broken', 'near', 'far', 'partly', 'a', 'b']


@pytest.mark.parametrize('worst', Status)
def test_what_has_parts_runs_as_the_worst_of_them(worst):
  better = [s for s in Status if s.urgency >= worst.urgency]
  assert Status.of_all([*better, worst]) is worst


def test_sizes_are_those_of_all_tasks():
  one = found.experiment('one')
  assert one.parameters == 42 and one.bytes_per_device == 340
  assert one.tasks[0].memory.total == 168 + 8 + 336 + 168
  broken = found.experiment('broken', Status.IMPOSSIBLE)
  assert broken.parameters is None and broken.bytes_per_device is None
  assert not broken.command and '--exp=one' in one.command
