"""Tests of random permutations."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pax_compat.inputs import shuffled_order

_LARGE = 100_003  # More than are sorted.


def _order(size, *, seed=0, epoch=0, positions=None):
  order = shuffled_order.ShuffledOrder(size, seed=seed, epoch=epoch)
  return order.at(np.arange(size) if positions is None else positions)


@pytest.mark.parametrize('size', [0, 1, 2, 65_536, 65_537, 131_072, 131_073])
def test_each_item_comes_once(size):
  np.testing.assert_array_equal(np.sort(_order(size)), np.arange(size))


@settings(max_examples=20)
@given(
  st.integers(1, 200_000),
  st.integers(0, 2**40),
  st.integers(0, 1000),
  st.data(),
)
def test_any_part_of_the_order_can_be_read(size, seed, epoch, data):
  whole = _order(size, seed=seed, epoch=epoch)
  np.testing.assert_array_equal(np.bincount(whole, minlength=size), 1)
  positions = data.draw(st.lists(st.integers(0, size - 1), max_size=5))
  part = _order(
    size, seed=seed, epoch=epoch, positions=np.array(positions, np.int64)
  )
  np.testing.assert_array_equal(part, whole[positions])


def test_more_items_than_memory():
  size = 10**15
  found = _order(size, positions=np.arange(size - 1000, size))
  assert len(set(found.tolist())) == 1000
  assert (0 <= found).all() and (found < size).all()


@pytest.mark.parametrize(
  ('size', 'expected'),
  [
    (5, [0, 2, 1, 3, 4]),
    (_LARGE, [17456, 94590, 40531, 67783, 20885]),
  ],
)
def test_the_order_is_the_same_everywhere(size, expected):
  assert _order(size, seed=3, epoch=1)[:5].tolist() == expected


@pytest.mark.parametrize('size', [50, _LARGE])
def test_seeds_and_epochs_have_different_orders(size):
  pairs = itertools.product(range(3), range(3))
  orders = {tuple(_order(size, seed=s, epoch=e)[:9].tolist()) for s, e in pairs}
  assert len(orders) == 9


def test_few_items_come_in_all_orders_equally_often():
  counts = collections.Counter(
    tuple(_order(3, seed=seed).tolist()) for seed in range(6000)
  )
  assert len(counts) == 6
  assert _chi_squared(np.array(list(counts.values()))) < 25


def test_many_items_come_in_no_visible_order():
  order = _order(_LARGE)
  # Of 100 bins, 99 is to be expected and 180 is beyond all chance.
  for numbers in (
    order[:20_000],
    np.diff(order) % _LARGE,
    (order - np.arange(_LARGE)) % _LARGE,
  ):
    counts, _ = np.histogram(numbers, bins=100, range=(0, _LARGE))
    assert 40 < _chi_squared(counts) < 180
  firsts = [_order(_LARGE, epoch=e, positions=np.zeros(1)) for e in range(1000)]
  counts, _ = np.histogram(firsts, bins=10, range=(0, _LARGE))
  assert _chi_squared(counts) < 35


def _chi_squared(counts: np.ndarray) -> float:
  expected = counts.sum() / len(counts)
  return float(((counts - expected) ** 2 / expected).sum())
