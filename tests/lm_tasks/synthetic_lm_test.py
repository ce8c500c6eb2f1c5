"""Tests of made-up token sequences."""

import numpy as np
import pytest

from lm_tasks.synthetic_lm import SyntheticLmInput


def _input(**fields):
  fields = {'batch_size': 3, 'seq_len': 5, 'vocab_size': 11, **fields}
  return SyntheticLmInput.config(**fields).Instantiate()


def test_rows_count_up_in_steps_of_their_own():
  batch = _input().get_next()
  steps = np.diff(batch.labels, axis=1) % 10
  assert (steps == steps[:, :1]).all() and (steps > 0).all()
  np.testing.assert_array_equal(batch.ids[:, 0], 0)
  np.testing.assert_array_equal(batch.ids[:, 1:], batch.labels[:, :-1])
  assert batch.labels.min() > 0 and batch.labels.max() < 11
  np.testing.assert_array_equal(batch.segment_pos, [range(5)] * 3)
  assert {x.shape for x in batch.values()} == {(3, 5)}


def test_batches_hosts_and_seeds_differ():
  one, other = _input(), _input(infeed_host_index=1)
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
