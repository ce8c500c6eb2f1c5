"""Tests of global batches: each example once, on any number of hosts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptors.seqio_input.reading import host_rows
from pax_compat.nested_map import NestedMap

_PROPERTIES = settings(max_examples=60)


def _examples(low: int, high: int) -> NestedMap:
  numbers = np.arange(low, high)
  return NestedMap(
    number=numbers,
    inner=NestedMap(
      weights=np.ones((high - low, 2), np.float32),
      paddings=np.zeros((high - low, 2), np.float32),
    ),
    text=np.array([str(n).encode() for n in numbers], object),
  )


def _chunks(count: int, size: int, skipped: int = 0):
  for low in range(skipped, count, size):
    high = min(low + size, count)
    yield host_rows.Chunk(epoch=5, row=low, examples=_examples(low, high))


def _sharing(batch_size: int, hosts: int, host: int) -> host_rows.Sharing:
  return host_rows.Sharing(batch_size=batch_size, num_hosts=hosts, host=host)


def _batches(sharing: host_rows.Sharing, chunks, count: int = 0):
  return [
    sharing.batch(share, blank_padding=True)
    for share in sharing.shares(chunks, count)
  ]


@_PROPERTIES
@given(
  count=st.integers(0, 60),
  batch_size=st.integers(1, 7),
  hosts=st.integers(1, 5),
  size=st.integers(1, 9),
)
def test_every_example_counts_once(count, batch_size, hosts, size):
  read = [
    _batches(_sharing(batch_size, hosts, host), _chunks(count, size))
    for host in range(hosts)
  ]

  assert {len(batches) for batches in read} == {
    -(-count // (batch_size * hosts))
  }
  # The global batches one after the other, as the devices see them.
  order = [batch for batches in zip(*read, strict=True) for batch in batches]
  real = [batch.eval_sample_weights == 1 for batch in order]
  numbers = [batch.number[own] for batch, own in zip(order, real, strict=True)]
  index = [
    batch[host_rows.INDEX][own] for batch, own in zip(order, real, strict=True)
  ]
  if count:
    np.testing.assert_array_equal(np.concatenate(numbers), np.arange(count))
    np.testing.assert_array_equal(np.concatenate(index), np.arange(count))
  for batch, own in zip(order, real, strict=True):
    assert len(own) == batch_size
    assert set(batch.eval_sample_weights[~own]) <= {0}
    for name in host_rows.PROVENANCE:
      assert set(batch[name][~own]) <= {-1}
    assert set(batch.inner.weights[~own].flat) <= {0}
    assert set(batch.inner.paddings[~own].flat) <= {1}


@_PROPERTIES
@given(
  count=st.integers(0, 60),
  batch_size=st.integers(1, 7),
  hosts=st.integers(1, 5),
)
def test_the_number_of_examples_of_a_host(count, batch_size, hosts):
  for host in range(hosts):
    sharing = _sharing(batch_size, hosts, host)
    batches = _batches(sharing, _chunks(count, 4))
    assert sharing.own_of(count) == sum(
      batch.eval_sample_weights.sum() for batch in batches
    )


@_PROPERTIES
@given(
  batch_size=st.integers(1, 5),
  hosts=st.integers(1, 4),
  later_hosts=st.integers(1, 4),
  read=st.integers(0, 5),
)
def test_other_hosts_continue_at_a_position(
  batch_size, hosts, later_hosts, read
):
  count = 50
  before = []
  positions = []
  for host in range(hosts):
    shares = _sharing(batch_size, hosts, host).shares(_chunks(count, 3), 0)
    position = host_rows.Position()
    for _, share in zip(range(read), shares, strict=False):
      if share.size == batch_size * hosts:
        before.extend(share.examples.number)
        position = share.next
    positions.append(position)

  [position] = set(positions)
  after = []
  for host in range(later_hosts):
    sharing = _sharing(batch_size, later_hosts, host)
    chunks = _chunks(count, 3, skipped=position.row)
    for batch in _batches(sharing, chunks, position.count):
      after.extend(batch[host_rows.INDEX][batch.eval_sample_weights == 1])

  assert sorted([*before, *after]) == list(range(count))


def test_padding_rows_are_copies_unless_blank():
  sharing = _sharing(3, 1, 0)
  [share] = sharing.shares(_chunks(1, 4), 0)

  batch = sharing.batch(share, blank_padding=False)

  assert list(batch.number) == [0, 0, 0]
  assert list(batch.text) == [b'0', b'0', b'0']
  assert list(batch.eval_sample_weights) == [1, 0, 0]
  np.testing.assert_array_equal(batch.inner.weights, np.ones((3, 2)))
  np.testing.assert_array_equal(batch.inner.paddings, np.zeros((3, 2)))


def test_weights_of_the_data_are_kept():
  examples = NestedMap(
    number=np.arange(2), eval_sample_weights=np.array([0.5, 1], np.float32)
  )
  sharing = _sharing(3, 1, 0)
  [share] = sharing.shares([host_rows.Chunk(0, 0, examples)], 0)

  batch = sharing.batch(share, blank_padding=False)

  assert list(batch.eval_sample_weights) == [0.5, 1, 0]


@pytest.mark.parametrize('size', [1, 2, 5])
def test_a_whole_chunk_is_not_copied(size):
  [chunk] = _chunks(size, size)
  [share] = _sharing(size, 1, 0).shares([chunk], 0)

  assert share.examples is chunk.examples
