"""Tests of near names."""

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


def test_there_is_always_a_nearest_name():
  assert errors.near_names('zzz', ['abc'], 3) == ['abc']


def test_the_suggestion_is_empty_without_known_names():
  assert errors.did_you_mean('a', []) == ''
  assert errors.did_you_mean('bb', ['b', 'a'], 1) == '; did you mean: b?'


def test_an_error_in_this_project_or_a_library_has_no_location_in_user_code():
  with pytest.raises(json.JSONDecodeError) as e:
    json.loads('{')
  assert errors.location_in_user_code(e.value) is None
