"""Tests of files that Params name relative to a checkout."""

import pathlib

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import checkout_files
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

_FILE = 'lingvo/tasks/asr/words.vocab'


@pytest.fixture(name='checkout')
def _checkout(tmp_path) -> pathlib.Path:
  path = tmp_path / _FILE
  path.parent.mkdir(parents=True)
  path.write_text('a\n')
  return tmp_path


def _params(**values):
  params = lingvo_runtime.module('lingvo.core.hyperparams').Params()
  inner = params.Copy()
  for name, value in values.items():
    inner.Define(name, value, '')
  params.Define('inner', inner, '')
  return params


def test_paths_of_the_checkout_become_absolute(checkout, log):
  given = dict(
    vocab=_FILE,
    pattern='text:lingvo/tasks/asr/*.vocab',
    other='lingvo is a word',
    number=7,
    absolute=f'/{_FILE}',
  )
  params = _params(**given)
  checkout_files.resolve(params, checkout, 'asr.Words')
  inner = params.inner
  assert inner.vocab == str(checkout / _FILE)
  assert inner.pattern == f'text:{checkout}/lingvo/tasks/asr/*.vocab'
  for name in ('other', 'number', 'absolute'):
    assert inner.Get(name) == given[name]
  assert f'asr.Words: vocab is {checkout}' in log()


def test_files_in_the_working_directory_come_first(checkout, monkeypatch):
  monkeypatch.chdir(checkout)
  params = _params(vocab=_FILE)
  checkout_files.resolve(params, pathlib.Path('/nowhere'), 'asr.Words')
  assert params.inner.vocab == _FILE


def test_a_missing_file_is_logged(caplog):
  params = _params(vocab=_FILE)
  checkout_files.resolve(params, None, 'asr.Words')
  assert params.inner.vocab == _FILE
  assert f'vocab is {_FILE}' in caplog.text
  assert '--lingvo_source' in caplog.text
