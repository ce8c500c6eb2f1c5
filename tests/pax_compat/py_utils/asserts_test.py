"""Tests of asserts."""

import pytest

from pax_compat.nested_map import NestedMap
from pax_compat.py_utils import asserts


def test_what_holds_passes():
  asserts.none(None)
  asserts.not_none(0)
  asserts.eq(1, 1)
  asserts.ne(1, 2)
  asserts.le(1, 1)
  asserts.lt(1, 2)
  asserts.ge(1, 1)
  asserts.gt(2, 1)
  asserts.instance(1, (int, str))
  asserts.subclass(bool, int)
  asserts.in_set(1, [1, 2])
  asserts.between(1, 1, 2)
  asserts.assert_same_structure({'a': [1, None]}, NestedMap(a=[None, 2]))


@pytest.mark.parametrize(
  'name, args',
  [
    ('none', [1]),
    ('not_none', [None]),
    ('eq', [1, 2]),
    ('ne', [1, 1]),
    ('le', [2, 1]),
    ('lt', [1, 1]),
    ('ge', [1, 2]),
    ('gt', [1, 1]),
    ('instance', [1, str]),
    ('subclass', [int, bool]),
    ('in_set', [3, [1, 2]]),
    ('in_set', [3, {1, 2}]),
    ('between', [3, 1, 2]),
    ('assert_same_structure', [{'a': 1}, {'b': 1}]),
  ],
)
def test_what_does_not_hold_raises(name, args):
  check = getattr(asserts, name)
  with pytest.raises(ValueError):
    check(*args)
  with pytest.raises(KeyError, match='^.mine.$'):
    check(*args, msg='mine', exception_type=KeyError)
  with asserts.AssertsContext(enabled=False):
    check(*args)
    with asserts.AssertsContext():
      assert asserts.AssertsContext.assertions_enabled()


def test_a_message_shows_the_source_and_the_values():
  dims, heads = 7, 2
  with pytest.raises(ValueError, match='`dims % heads=1` must be equal to `0`'):
    asserts.eq(dims % heads, 0)
  with pytest.raises(ValueError, match='`rate` must be in the range `.0, 1]`'):
    asserts.between(0, 0, 1, left_strict=True, value_str='rate')
