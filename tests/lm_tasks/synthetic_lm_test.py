"""Tests of synthetic token sequences."""

import numpy as np
import pytest

from lm_tasks.synthetic_lm import SyntheticLmInput
from pax_compat import errors


def _input(**fields):
  fields = {'batch_size': 3, 'seq_len': 5, 'vocab_size': 11, **fields}
  return SyntheticLmInput.config(**fields).Instantiate()


def test_rows_count_up_with_different_strides():
  batch = _input().get_next()
  steps = np.diff(batch.labels, axis=1) % 10
  assert (steps == steps[:, :1]).all() and (steps > 0).all()
  np.testing.assert_array_equal(batch.ids[:, 0], 0)
  np.testing.assert_array_equal(batch.ids[:, 1:], batch.labels[:, :-1])
  assert batch.labels.min() > 0 and batch.labels.max() < 11
  np.testing.assert_array_equal(batch.segment_pos, [range(5)] * 3)
  assert {x.shape for x in batch.values()} == {(3, 5)}


def test_batches_hosts_and_seeds_differ():
  one, other = (
    _input(num_infeed_hosts=2, infeed_host_index=h) for h in range(2)
  )
  seeded = _input(input_random_seed=7)
  rows = [
    tuple(row)
    for data in (one, one, other, seeded)
    for row in data.get_next().labels
  ]
  assert len(set(rows)) > 6


def test_it_resumes_and_resets_and_ends():
  data = _input(num_batches=3)
  batches = [data.get_next().labels for _ in range(3)]
  with pytest.raises(StopIteration):
    data.get_next()
  data.reset()
  np.testing.assert_array_equal(data.get_next().labels, batches[0])
  again = _input(num_batches=3)
  again.resume_at(2)
  np.testing.assert_array_equal(again.get_next().labels, batches[2])
  with pytest.raises(StopIteration):
    again.get_next()


def test_it_resumes_with_the_next_rows_on_any_number_of_hosts():
  alone = _input()
  order = np.concatenate([alone.get_next().labels for _ in range(9)])
  state, read = b'0', []
  for hosts in (2, 4, 1, 2):
    inputs = [
      _input(num_infeed_hosts=hosts, infeed_host_index=i) for i in range(hosts)
    ]
    for data in inputs:
      data.set_state(state)
    read += [data.get_next().labels for data in inputs]
    [state] = {data.get_state() for data in inputs}
  np.testing.assert_array_equal(np.concatenate(read), order)
  with pytest.raises(errors.UserError, match="state of input is b'x'; expecte"):
    alone.set_state(b'x')


def test_starts_and_strides_are_uniform():
  data = _input(batch_size=4000, vocab_size=9)
  labels = data.get_next().labels
  starts = np.bincount(labels[:, 0], minlength=9)
  # The first and the last of the nine starts give the same of eight tokens.
  np.testing.assert_allclose(starts / 4000, [0, 2 / 9, *[1 / 9] * 7], atol=0.03)
  steps = np.bincount((labels[:, 1] - labels[:, 0]) % 8, minlength=8)
  np.testing.assert_allclose(steps / 4000, [0, *[1 / 7] * 7], atol=0.03)
