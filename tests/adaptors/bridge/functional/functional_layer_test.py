"""Tests of flattened arguments of layers."""

import doctest

from adaptors.bridge import scoped_variables
from adaptors.bridge.functional import functional_layer


def test_the_examples():
  for module in (functional_layer, scoped_variables):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_a_tree_is_flattened_and_restored():
  tree = {'x': [1.5, None], 'y': (2.5, 'text')}
  leaves, structure = functional_layer.flatten(
    tree, lambda x: isinstance(x, float)
  )
  assert leaves == [1.5, 2.5]
  assert functional_layer.unflatten(leaves, structure, dict) == tree
