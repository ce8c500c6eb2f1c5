"""Tests of near names."""

import importlib
import json

import pytest

from pax_compat import errors


def test_near_names_come_nearest_first():
  known = ['model_dims', 'vocab', 'vocab_size', 'num_layers']
  near = errors.near_names('vocab_sise', known, count=2)
  assert near == ['vocab_size', 'vocab']


def test_case_does_not_matter_and_names_come_back_as_they_are():
  assert errors.near_names('lm.wordlm', ['lm.WordLm', 'x'], 1) == ['lm.WordLm']


def test_names_that_differ_in_case_are_all_near_the_same_one_nearest():
  assert errors.near_names('foo', ['Foo', 'foo', 'x'], 2) == ['foo', 'Foo']


@pytest.mark.parametrize(
  'name,near',
  [
    ('zzz', []),
    ('learning_rate', []),
    ('num', ['num_layers']),
    ('lm.num_layers', ['num_layers']),
    ('words', ['lm.words.WordLm']),
    ('', []),
    ('lm', []),  # Of two letters: too little, although it is contained.
  ],
)
def test_names_that_are_not_similar_are_not_near(name, near):
  known = ['vocab_size', 'num_layers', 'lm.words.WordLm']
  assert errors.near_names(name, known) == near


def test_similar_names_come_before_those_that_contain_the_name():
  known = ['a_very_long_name_with_dims_in_it', 'dim']
  assert errors.near_names('dims', known) == known[::-1]


def test_the_suggestion_is_empty_without_similar_names():
  assert errors.did_you_mean('a', []) == ''
  assert errors.did_you_mean('dims', ['vocab_size']) == ''
  assert errors.did_you_mean('bb', ['b', 'a'], 1) == '; did you mean: b?'


@pytest.mark.parametrize(
  'name,message',
  [
    ('jsom', 'module jsom not found; did you mean: json'),
    (
      'jsom.decoder',
      'module jsom.decoder not found: jsom is missing; did',
    ),
    ('json.decodr', 'module json.decodr not found; did you mean: decoder'),
    (
      'jsom/decoder.py',
      'module jsom/decoder.py not found; expected the name of a module, not of'
      ' its file: jsom.decoder',
    ),
    (
      '/some/jsom.py',
      'module /some/jsom.py not found; expected the name of a module, not of'
      ' its file: jsom, with /some on PYTHONPATH',
    ),
  ],
)
def test_a_missing_module(name, message):
  with pytest.raises(ModuleNotFoundError) as e:
    importlib.import_module(name)
  assert errors.missing_module(name, e.value).startswith(message)
  assert errors.missing_module('other', e.value) is None
  assert errors.missing_module(name, ImportError(name=name)) is None


def test_an_error_in_this_project_or_a_library_has_no_location_in_user_code():
  with pytest.raises(json.JSONDecodeError) as e:
    json.loads('{')
  assert errors.location_in_user_code(e.value) is None


def test_an_error_without_a_message_has_its_line_and_that_of_user_code(
  tmp_path, monkeypatch
):
  file = tmp_path / 'of_a_user.py'
  file.write_text('def call(function):\n  function()\n')
  monkeypatch.syspath_prepend(tmp_path)
  call = importlib.import_module(file.stem).call

  def fail():
    assert json is None

  def explain():
    raise ValueError('an explanation')

  def located(function):
    with pytest.raises((AssertionError, ValueError)) as caught:
      function()
    caught.value.args = caught.value.args if function is explained else ()
    return errors.with_location(caught.value)

  def explained():
    call(explain)

  found = located(lambda: call(fail))
  assert found.startswith('AssertionError: assert json is None (')
  assert found.endswith(f'), called from {file}:2')
  assert 'called' not in located(fail)
  assert located(explained) == f'ValueError: an explanation ({file}:2)'
