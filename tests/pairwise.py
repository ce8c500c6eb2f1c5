"""Chooses repeats of a test that have all pairs of its parameters' values.

A test with three or more independent `parametrize`s is repeated for their full
product, most of which need not run each time: they are exhaustive.
"""

import collections
import itertools
from collections.abc import Iterable

import pytest


def without_new_pairs(items: Iterable[pytest.Item]) -> list[pytest.Item]:
  """Returns repeats of tests whose pairs of values are in others, too.

  Pairs in items that are marked as slow do not count for those that are not.
  """
  repeats = collections.defaultdict(list)
  for item in items:
    if hasattr(item, 'callspec'):
      repeats[item.parent.nodeid, item.originalname].append(item)
  return [x for of_test in repeats.values() for x in _superfluous(of_test)]


def _superfluous(items: list[pytest.Item]) -> list[pytest.Item]:
  """Chooses the item with the most new pairs until none has a new one."""
  seen = set()
  superfluous = []
  for is_slow in (False, True):
    left = {}
    for item in items:
      if bool(item.get_closest_marker('slow')) == is_slow:
        rows = _rows(item)
        left[item] = {*rows, *itertools.combinations(rows, 2)} - seen
    while left:
      chosen = max(left, key=lambda item: len(left[item]))
      covered = left.pop(chosen)
      if not covered:
        superfluous += [chosen, *left]
        break
      seen |= covered
      left = {item: new - covered for item, new in left.items()}
  return superfluous


def _rows(item: pytest.Item) -> list[tuple]:
  """Returns which row of each `parametrize` an item has.

  The rows of one `parametrize` are chosen by hand: none is left out.
  """
  values = item.callspec.params
  of_name = {name: (name,) for name in values}
  for mark in item.iter_markers('parametrize'):
    names = mark.args[0]
    if isinstance(names, str):
      names = [name.strip() for name in names.split(',')]
    of_name |= dict.fromkeys(names, tuple(names))
  return [
    (*names, *(id(values.get(name)) for name in names))
    for names in dict.fromkeys(of_name.values())
  ]
