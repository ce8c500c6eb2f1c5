"""Tests of the names of tasks' models."""

import doctest

from pax_compat.layer_core import task_scopes


def test_the_example():
  found = doctest.testmod(task_scopes)
  assert found.attempted and not found.failed
