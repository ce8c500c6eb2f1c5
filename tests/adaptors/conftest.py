"""What the tests of adaptors share."""

import functools
import importlib
import sys
import threading

import pytest
from absl import logging


@pytest.fixture(autouse=True)
def _random_numbers():
  """Has TensorFlow draw the same numbers each time, once it is imported."""
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is not None:
    tensorflow.random.set_seed(1)


@pytest.fixture(autouse=True)
def _one_stack(request, monkeypatch):
  """Has TensorFlow keep the same stack for all operations of its graphs.

  It keeps that of the call, for messages: a tenth of the time of a graph.
  """
  if 'tensorflow' in sys.modules and 'bridge' not in request.path.parts:
    tf_stack = importlib.import_module('tensorflow.python.util.tf_stack')
    stack = _short_stack(tf_stack.extract_stack)
    monkeypatch.setattr(tf_stack, 'extract_stack', lambda stacklevel=1: stack)


@pytest.fixture(autouse=True)
def _no_lingvo_assertions(request, monkeypatch):
  """Leaves Lingvo's run-time assertions out of graphs that are compared.

  They are up to a fifth of a graph's time. What layers compute is the same.
  """
  py_utils_flags = sys.modules.get('lingvo.core.py_utils_flags')
  if py_utils_flags is not None and 'translate' in request.path.parts:
    monkeypatch.setattr(py_utils_flags, 'enable_asserts', lambda: False)


@functools.cache
def _short_stack(extract_stack):
  """Returns the stack of a thread, which is short."""
  found = []
  thread = threading.Thread(target=lambda: found.append(extract_stack()))
  thread.start()
  thread.join()
  return found[0]


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
