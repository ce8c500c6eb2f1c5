"""Tests of LingvoInputAdaptorNewBatchSize."""

import pytest

from adaptors.lingvo_input import new_batch_size
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing


def _adaptor(params, **fields):
  return new_batch_size.LingvoInputAdaptorNewBatchSize(input=params, **fields)


@pytest.mark.parametrize('size', [1, 5])
def test_batches_are_cut(size):
  adaptor = _adaptor(testing.numbers(10), batch_size=size)
  batches = testing.drain(adaptor)
  assert [b.x.tolist() for b in batches] == [
    list(range(i, i + size)) for i in range(0, 10, size)
  ]
  assert all(b.eval_sample_weights.shape == (size,) for b in batches)
  adaptor.close()


def test_a_reset_starts_at_the_first_example():
  adaptor = _adaptor(testing.numbers(10), batch_size=1)
  for _ in range(3):
    adaptor.get_next()
  adaptor.peek_padded()
  adaptor.reset()
  assert [b.x.item() for b in testing.drain(adaptor)] == list(range(10))
  adaptor.close()


def test_num_batches_counts_small_batches():
  adaptor = _adaptor(testing.numbers(10), batch_size=1, num_batches=7)
  assert len(testing.drain(adaptor)) == 7
  adaptor.close()


def test_record_based_inputs_are_cut_too(tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(16))
  params = testing.lm_params(pattern, repeat_count=1)
  adaptor = _adaptor(params, batch_size=2)
  batches = testing.drain(adaptor)
  assert [b.ids.shape[0] for b in batches] == [2] * 8
  assert len({text for b in batches for text in testing.texts(b)}) == 16
  adaptor.close()


def test_what_cannot_be_cut_is_refused():
  adaptor = _adaptor(testing.numbers(10), batch_size=2)
  with pytest.raises(
    errors.UserError, match='has 5 examples; expected a multip'
  ):
    adaptor.get_next()
  adaptor.close()
  for size in (None, 0, True):
    with pytest.raises(
      errors.UserError, match='expected (the number of|how many) examples'
    ):
      _adaptor(testing.numbers(10), batch_size=size)
