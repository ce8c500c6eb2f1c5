"""Which repeats of a test run by default."""

import itertools
import types

import pytest

from tests import pairwise


class _Repeat:
  """A repeat of a test with some parameters, as pytest collects it."""

  parent = types.SimpleNamespace(nodeid='some_test.py')
  originalname = 'test'

  def __init__(self, names: list[str], rows: tuple[tuple, ...], slow=False):
    self.names, self.values, self.slow = names, sum(rows, ()), slow
    flat = [name for several in names for name in several.split(',')]
    params = dict(zip(flat, self.values, strict=True))
    self.callspec = types.SimpleNamespace(params=params)
    self.markers = []

  def add_marker(self, name):
    self.markers.append(name)

  def get_closest_marker(self, name):
    return self.slow or None

  def iter_markers(self, name):
    return [pytest.mark.parametrize(n, []).mark for n in self.names]


def _repeats(names, *rows):
  return [_Repeat(names, chosen) for chosen in itertools.product(*rows)]


def test_each_pair_of_values_stays():
  repeats = _repeats(
    ['a', 'b', 'c,d'],
    [(0,), (1,), (2,)],
    [('x',), ('y',)],
    [(None, 1), (None, 2)],
  )
  left_out = pairwise.without_new_pairs(repeats)
  assert 4 <= len(left_out) <= 6  # Of 12; at least 6 are needed.
  kept = [x for x in repeats if x not in left_out]
  for i, j in itertools.combinations((0, 1, 3), 2):
    pairs = {(x.values[i], x.values[j]) for x in repeats}
    assert {(x.values[i], x.values[j]) for x in kept} == pairs


@pytest.mark.parametrize(
  'repeats',
  [
    _repeats(['a'], [(0,), (1,)]),
    _repeats(['a', 'b'], [(0,), (1,)], [(0,), (1,)]),
    # Chosen by hand, although the last one has no new pair.
    _repeats(['a,b,c'], [(1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)]),
  ],
)
def test_what_is_no_product_of_three_stays(repeats):
  assert pairwise.without_new_pairs(repeats) == []


def test_pairs_of_slow_repeats_do_not_count_for_others():
  slow = _Repeat(['a', 'b'], ((0,), (1,)), slow=True)
  other = _Repeat(['a', 'b'], ((0,), (1,)))
  assert pairwise.without_new_pairs([slow, other]) == [slow]
