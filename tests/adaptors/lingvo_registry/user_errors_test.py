"""Tests of messages for errors in the methods of experiments."""

import importlib

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import mounts, user_errors
from pax_compat import errors
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO


def _message(method) -> str:
  with pytest.raises(errors.UserError) as caught:
    with user_errors.of_method('lm.mine.Model.Task()'):
      method()
  return str(caught.value)


def test_a_field_that_params_lack():
  params = lingvo_runtime.module('lingvo.tasks.lm.layers').RnnLm.Params()
  for method in (
    lambda: setattr(params, 'tie', True),
    lambda: params.tie,
    lambda: params.Set(tie=True),
  ):
    text = _message(method)
    assert text.startswith(
      'lm.mine.Model.Task() fails: the Params of lingvo.tasks.lm.layers.RnnLm'
      " have no field 'tie'"
    )
    assert 'keys are' not in text
  text = _message(lambda: params.Set(vocab_siz=3))
  assert "no field 'vocab_siz'; did you mean: vocab_size" in text


def test_a_field_that_the_checkout_defines(tmp_path, monkeypatch):
  params = lingvo_runtime.module('lingvo.tasks.lm.layers').RnnLm.Params()
  file = tmp_path / 'lingvo' / 'tasks' / 'lm' / 'layers.py'
  file.parent.mkdir(parents=True)
  file.write_text("class RnnLm:\n  p.Define(\n    'tie', False, '')\n")
  monkeypatch.setattr(mounts, 'checkout', lambda: tmp_path)
  text = _message(lambda: params.Set(tie=True))
  assert f'; {file}:2 defines it, and the module of the installed' in text
  assert 'defines it' not in _message(lambda: params.Set(others=True))


def test_other_errors_keep_their_text():
  assert 'fails: ZeroDivisionError: ' in _message(lambda: 1 / 0)
  tf = importlib.import_module('tensorflow')
  text = _message(lambda: tf.flags)
  assert 'from lingvo import compat as tf' in text
  with pytest.raises(errors.UserError, match='^mine$'):
    with user_errors.of_method('x'):
      raise errors.UserError('mine')
