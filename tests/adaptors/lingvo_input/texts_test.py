"""Texts in the batches of evaluations, through every adaptor."""

import numpy as np
import pytest

from adaptors.lingvo_input import (
  eval_adaptors,
  input_adaptor,
  new_batch_size,
)
from tests.adaptors.lingvo_input import generators as testing


@pytest.fixture(name='pattern')
def _pattern(tmp_path):
  return testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(18))


def _drained(cls, params, **fields):
  adaptor = cls(input=params, **fields)
  batches = testing.drain(adaptor)
  adaptor.close()
  return batches


def _check(batches):
  """Asserts that the texts are those that the ids were made of."""
  found = []
  for batch in batches:
    assert batch.text.dtype == object
    assert batch.text.shape == batch.eval_sample_weights.shape
    for row in np.flatnonzero(batch.eval_sample_weights):
      found.append(batch.text[row].decode())
      # The ASCII tokenizer has one id for each letter, and an end symbol.
      assert (batch.paddings[row] < 0.5).sum() == len(found[-1]) + 1
  assert sorted(found) == sorted(testing.mixed_lines(18))


@pytest.mark.parametrize('hosts', [1, 2, 3])
@pytest.mark.parametrize(
  'cls',
  [
    eval_adaptors.LingvoEvalAdaptor,
    eval_adaptors.LingvoLazyEvalAdaptor,
  ],
)
def test_evaluation_on_several_hosts(pattern, hosts, cls):
  params, batch_size = testing.letters_params(pattern), 4
  if cls is eval_adaptors.LingvoLazyEvalAdaptor:
    params.Define('batch_size', 4, '')
    params.num_samples, batch_size = 18, None
  batches = []
  for host in range(hosts):
    batches += _drained(
      cls,
      params,
      batch_size=batch_size,
      reset_for_eval=True,
      num_infeed_hosts=hosts,
      infeed_host_index=host,
    )
  _check(batches)


def test_rows_that_fill_up_have_no_text(pattern):
  params = testing.letters_params(pattern, repeat_count=1)
  batches = _drained(
    input_adaptor.LingvoInputAdaptor, params, reset_for_eval=True
  )
  _check(batches)
  filled = [t for b in batches for t in b.text[b.eval_sample_weights == 0]]
  assert filled and set(filled) == {b''}


def test_cut_batches(pattern):
  params = testing.letters_params(pattern, repeat_count=1)
  params.Set(bucket_upper_bound=[40], bucket_batch_limit=[6])
  batches = _drained(
    new_batch_size.LingvoInputAdaptorNewBatchSize, params, batch_size=3
  )
  assert len(batches) == 6
  _check(batches)


def test_padded_batches(pattern):
  adaptor = eval_adaptors.LingvoEvalAdaptor(
    input=testing.letters_params(pattern),
    batch_size=3,
    reset_for_eval=True,
    batch_padding_size=1,
  )
  batch = adaptor.get_next_padded()
  adaptor.close()
  assert batch.text.shape == (4,) and batch.text[3] == b''
