"""What the tests of adaptors share."""

import sys

import pytest
from absl import logging


@pytest.fixture(autouse=True)
def _random_numbers():
  """Has TensorFlow draw the same numbers each time, once it is imported."""
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is not None:
    tensorflow.random.set_seed(1)


@pytest.fixture(name='log')
def _log(caplog):
  """Gives a function that returns what was logged so far."""
  logger = logging.get_absl_logger()
  before = logger.propagate
  logger.propagate = True
  caplog.set_level('INFO')
  caplog.set_level('INFO', logger=logger.name)
  yield lambda: '\n'.join(r.getMessage() for r in caplog.records)
  logger.propagate = before
