"""Tests of the base of schedules."""

import doctest

from pax_compat.schedules import base


def test_the_example():
  found = doctest.testmod(base)
  assert found.attempted and not found.failed
