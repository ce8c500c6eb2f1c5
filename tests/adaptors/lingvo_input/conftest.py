"""Fixtures for the tests of Lingvo inputs."""

import pytest

from adaptors.lingvo_input import input_adaptor


@pytest.fixture(name='adapt')
def _adapt():
  """Builds adaptors that are closed at the end of the test."""
  built = []

  def build(params, cls=input_adaptor.LingvoInputAdaptor, **fields):
    built.append(cls(input=params, **fields))
    return built[-1]

  yield build
  for adaptor in built:
    adaptor.close()
