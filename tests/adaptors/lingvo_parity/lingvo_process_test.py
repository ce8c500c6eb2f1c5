"""Tests of the process of Lingvo's side."""

import os

import pytest

from adaptors.lingvo_parity import lingvo_process
from pax_compat import errors


def _double(x):
  assert os.environ['TF_ENABLE_ONEDNN_OPTS'] == '0'
  return 2 * x


def _fail():
  raise ValueError('no such\nactivation')


def _refuse():
  raise errors.UserError('the input ended')


def _result(compute, *arguments):
  with lingvo_process.LingvoProcess(compute) as process:
    process.begin(*arguments)
    return process.result()


def test_returns_the_result(monkeypatch):
  monkeypatch.delenv('TF_ENABLE_ONEDNN_OPTS', raising=False)
  assert _result(_double, 21) == 42


def test_an_aborted_process():
  with pytest.raises(lingvo_process.LingvoFailedError, match='SIGABRT'):
    _result(os.abort)


def test_an_error_of_lingvo():
  with pytest.raises(
    lingvo_process.LingvoFailedError,
    match=r'ValueError: no such activation \(.*lingvo_process_test.py:\d+\)',
  ):
    _result(_fail)


def test_an_error_of_the_user():
  with pytest.raises(errors.UserError, match='the input ended') as error:
    _result(_refuse)
  assert type(error.value) is errors.UserError


def test_nobody_asks_for_the_result():
  with lingvo_process.LingvoProcess(os.abort):
    pass
