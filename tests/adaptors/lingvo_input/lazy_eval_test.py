"""Tests of LingvoLazyEvalAdaptor on inputs that repeat."""

import pytest

from adaptors.lingvo_input import eval_adaptors
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing

B = 4
COUNT = 13


def _adaptor(params=None, **fields):
  if params is None:
    params = testing.numbers(COUNT, repeat=True, weights=True)
    params.Set(batch_size=B, num_samples=COUNT)
  fields = {'reset_for_eval': True, **fields}
  return eval_adaptors.LingvoLazyEvalAdaptor(input=params, **fields)


@pytest.mark.parametrize('hosts', [1, 2, 3, 5])
def test_every_example_once_though_the_input_repeats(hosts):
  shards = [
    _adaptor(num_infeed_hosts=hosts, infeed_host_index=host)
    for host in range(hosts)
  ]
  found, counts = [], set()
  for shard in shards:
    assert shard.num_samples == COUNT
    batches = testing.drain(shard)
    counts.add(len(batches))
    for batch in batches:
      assert batch.x.shape == (B,)
      real = batch.eval_sample_weights > 0
      # The input has its own example weights.
      assert (batch.eval_sample_weights[real] == batch.x[real] / 2).all()
      found += batch.x[real].tolist()
    shard.close()
  assert sorted(found) == list(range(1, COUNT))  # 0 has weight 0.
  assert len(counts) == 1


def test_reset_gives_the_same_again():
  adaptor = _adaptor()
  whole = testing.drain(adaptor)
  adaptor.reset()
  adaptor.get_next()
  adaptor.reset()
  testing.assert_same(testing.drain(adaptor), whole)
  adaptor.close()


def test_num_batches_cuts_the_epoch():
  adaptor = _adaptor(num_batches=2)
  assert len(testing.drain(adaptor)) == 2
  adaptor.close()


def test_fewer_examples_than_are_promised():
  params = testing.numbers(6).Set(batch_size=B, num_samples=8)
  adaptor = _adaptor(params)
  with pytest.raises(
    errors.UserError, match='ended after 6 examples; expected'
  ):
    testing.drain(adaptor)
  adaptor.close()


@pytest.mark.parametrize(
  ('params', 'fields', 'words'),
  [
    ({}, dict(is_training=True), 'is_training is True'),
    ({}, dict(reset_for_eval=False), 'reset_for_eval is False'),
    ({}, dict(batch_size=3), 'batch_size is 3; leave it None'),
    (dict(batch_size=0), {}, 'batch_size is 0; expected how many'),
    (dict(num_samples=0), {}, 'input.num_samples is 0; expected'),
    ({}, dict(infeed_host_index=1), 'is 1; expected one of 1 hosts'),
  ],
)
def test_wrong_fields_are_refused(params, fields, words):
  made = testing.numbers(6).Set(batch_size=B, num_samples=6).Set(**params)
  with pytest.raises(errors.UserError, match=words):
    _adaptor(made, **fields)
