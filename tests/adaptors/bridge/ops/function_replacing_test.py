"""Tests of adaptors.bridge.ops.function_replacing."""

import concurrent.futures
import html
import textwrap

import pytest

from adaptors.bridge.ops import function_replacing

_ESCAPE = 'html.escape'


def _shouted(original, text, quote=True):
  return original(text, quote).upper()


def test_a_function_is_replaced_in_all_modules(monkeypatch):
  monkeypatch.setattr(textwrap, 'also_escape', html.escape, raising=False)
  with function_replacing.replaced({_ESCAPE: _shouted}):
    assert html.escape('<a>') == '&LT;A&GT;'
    assert textwrap.also_escape('a') == 'A'
  assert html.escape('<a>') == '&lt;a&gt;'
  assert textwrap.also_escape is html.escape


def test_it_is_restored_after_an_exception():
  before = html.escape
  with (
    pytest.raises(ValueError, match='within'),
    function_replacing.replaced({_ESCAPE: _shouted}),
  ):
    raise ValueError('within')
  assert html.escape is before


def test_an_unknown_function_leaves_the_others_as_they_were():
  before = html.escape
  with (
    pytest.raises(AttributeError, match='no_such'),
    function_replacing.replaced({_ESCAPE: _shouted, 'html.no_such': _shouted}),
  ):
    pass
  assert html.escape is before


def test_the_innermost_replacement_is_used():
  with function_replacing.replaced({_ESCAPE: _shouted}):
    with function_replacing.replaced({_ESCAPE: lambda original, text: 'inner'}):
      assert html.escape('a') == 'inner'
    assert html.escape('a') == 'A'


def test_other_threads_call_the_function_itself():
  with (
    concurrent.futures.ThreadPoolExecutor(1) as thread,
    function_replacing.replaced({_ESCAPE: _shouted}),
  ):
    assert thread.submit(html.escape, 'a').result() == 'a'
    assert html.escape('a') == 'A'
