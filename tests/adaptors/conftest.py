"""What the tests of adaptors share."""

import pytest
from absl import logging


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
