"""Tests of findings and of their order."""

import doctest

import pytest

from adaptors.migrate import findings
from adaptors.migrate.findings import Status, by_priority
from tests.adaptors.migrate import found


def test_the_examples():
  result = doctest.testmod(findings)
  assert result.attempted and not result.failed


def test_impossible_ones_are_first_then_those_with_few_issues():
  experiments = [
    found.experiment('b', Status.NATIVE),
    found.experiment('a', Status.NATIVE),
    found.experiment('far', Status.BRIDGED, issues=3),
    found.experiment('near', Status.BRIDGED, issues=1),
    found.experiment('partly', Status.PARTLY, issues=1),
    found.experiment('broken', Status.IMPOSSIBLE),
  ]
  ordered = [e.name for e in by_priority(experiments)]
  assert ordered == ['broken', 'near', 'far', 'partly', 'a', 'b']


@pytest.mark.parametrize('worst', Status)
def test_the_worst_of_several(worst):
  better = [s for s in Status if s.urgency >= worst.urgency]
  assert Status.worst([*better, worst]) is worst


def test_sizes_are_those_of_all_tasks():
  one = found.experiment('one')
  assert one.parameters == 42 and one.bytes_per_device == 340
  assert one.tasks[0].memory.total == 168 + 8 + 336 + 168
  broken = found.experiment('broken', Status.IMPOSSIBLE)
  assert broken.parameters is None and broken.bytes_per_device is None
  assert not broken.command and '--exp=one' in one.command
