"""Tests of the answers of the store that all processes share."""

import time

import jax
import pytest

from pax_compat import errors
from pax_compat.processes import process_failures
from tests.on_processes import failures
from tests.pax_compat import launching

MISSING = 'NOT_FOUND: Config key pax_compat/failure not found.'
DEAD = 'UNAVAILABLE: failed to connect to all addresses'


class Store:
  """A store that only fails.

  Attributes:
    polls: the number of reads.
  """

  def __init__(self, message: str):
    self._message = message
    self.polls = 0

  def key_value_try_get(self, key):
    self.polls += 1
    raise jax.errors.JaxRuntimeError(self._message)

  def key_value_set(self, key, value):
    raise jax.errors.JaxRuntimeError(self._message)


@pytest.fixture(autouse=True)
def _polls_often(monkeypatch):
  monkeypatch.setattr(process_failures, '_POLL_SECONDS', 0.01)


@pytest.mark.parametrize(('message', 'warnings'), [(MISSING, 0), (DEAD, 1)])
def test_a_store_that_does_not_answer_is_logged_once(caplog, message, warnings):
  store = Store(message)
  watch = process_failures._Watch(store)
  while store.polls < 3:
    time.sleep(0.01)
  watch.end()
  assert caplog.text.count('may go unnoticed') == warnings
  assert (DEAD in caplog.text) == bool(warnings)


@pytest.mark.parametrize(
  ('message', 'warns'), [('ALREADY_EXISTS: key', False), (DEAD, True)]
)
def test_a_failure_that_cannot_be_reported(caplog, message, warns):
  watch = process_failures._Watch(Store(message))
  watch.report(errors.UserError('wrong'))
  watch.end()
  assert ('cannot be notified' in caplog.text) == warns


@pytest.mark.slow
@pytest.mark.parametrize('index', [0, 1])
def test_a_process_that_hangs_ends_the_others(index):
  printed = launching.run_on_processes(failures.one_hangs, 3, args=[index])
  for number, text in enumerate(printed):
    expected = f'ended, because process {index} has failed: it hangs\n'
    assert text == ('' if number == index else expected)
