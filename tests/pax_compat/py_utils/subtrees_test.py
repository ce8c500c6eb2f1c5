"""Paths of leaves, and trees within other trees."""

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.nested_map import NestedMap
from pax_compat.py_utils import subtrees

TREE = {'a': [1, NestedMap(b=2)], 'c': (3,)}


def test_paths():
  paths = {'a': ['a[0]', NestedMap(b='a[1]/b')], 'c': ('c[0]',)}
  assert subtrees.to_path_tree(TREE) == paths
  paths['c'] = (None,)
  assert subtrees.to_path_tree(TREE, lambda leaf: leaf == 3) == paths


def test_patterns_match_whole_paths():
  matched = subtrees.fullmatch_path(TREE, [r'a.*b', r'\[0\]'])
  assert matched == {'a': [False, {'b': True}], 'c': (False,)}


@pytest.mark.parametrize(
  ('subset', 'superset', 'contained'),
  [
    ([1], [1, 2], True),
    ([2], [1, 2], False),
    ({'a': [1]}, NestedMap(TREE), True),
    ((1,), [1, 2], False),
    ({'a': 1, 'b': 2}, {'a': 1}, False),
  ],
)
def test_subsets(subset, superset, contained):
  assert subtrees.is_subset(subset, superset) == contained


def test_extraction_takes_the_leaves_of_the_superset():
  place = jax.ShapeDtypeStruct((), np.int32)
  got = subtrees.extract_elements_matching_subset_structure(
    {'a': [place, {'b': place}]}, TREE
  )
  assert got == {'a': [1, {'b': 2}]}


@pytest.mark.parametrize(
  ('subset', 'message'),
  [
    ({'d': 1}, '/d is in the subset only'),
    ({'a': [1, 2, 3]}, '/a: the subset has 3 elements'),
    ({'c': [3]}, '/c: the subset has a list, the superset a tuple'),
  ],
)
def test_what_is_not_there_is_an_error(subset, message):
  with pytest.raises(errors.UserError, match=message):
    subtrees.extract_elements_matching_subset_structure(subset, TREE)


def test_copies_share_leaves_only():
  tree = NestedMap(a=NestedMap(b=np.ones(2)))
  copied = subtrees.copy(tree)
  assert copied.a.b is tree.a.b
  copied.a.b = 3
  assert subtrees.get_shape_dtype(tree).a.b.shape == (2,)
