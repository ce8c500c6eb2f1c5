"""Tests of LingvoEvalAdaptor with the real LmInput on small text files."""

import collections
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from adaptors.lingvo_input import eval_adaptors
from pax_compat import errors
from tests import resources
from tests.adaptors.lingvo_input import generators as testing

B = 4

_ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(name='adapt')
def _adapt():
  """Builds adaptors that are closed at the end of the test."""
  built = []

  def build(params, **fields):
    fields = {'batch_size': B, 'reset_for_eval': True, **fields}
    built.append(eval_adaptors.LingvoEvalAdaptor(input=params, **fields))
    return built[-1]

  yield build
  for adaptor in built:
    adaptor.close()


def _all_texts(params):
  """Returns every example of the data, by a generator driven by hand."""
  single = params.Copy().Set(bucket_batch_limit=[1] * 3)
  count = sum(
    1 for _ in open(params.file_pattern.removeprefix('text:'), encoding='utf-8')
  )
  batches = testing.direct_batches(single, count)
  return [_tokens(b['labels'][0], b['paddings'][0]) for b in batches]


def _tokens(labels, paddings):
  return ' '.join(str(t) for t in labels[paddings < 0.5])


@pytest.mark.parametrize('make', [testing.lm_params, testing.letters_params])
@pytest.mark.parametrize('hosts', [1, 2, 3])
@pytest.mark.parametrize('count', [1, B - 1, B, B + 1, 3 * B + 2])
def test_every_example_once_over_all_hosts(adapt, tmp_path, make, hosts, count):
  lines = testing.unique_lines(count)
  if count > B + 1:
    lines = testing.mixed_lines(count)
  params = make(testing.write_lines(tmp_path / 'a.txt', lines))
  shards = [
    adapt(params, num_infeed_hosts=hosts, infeed_host_index=host)
    for host in range(hosts)
  ]
  found, shapes = collections.Counter(), []
  for shard in shards:
    assert shard.num_samples is None
    batches = testing.drain(shard)
    shapes.append([b.ids.shape for b in batches])
    for batch in batches:
      assert batch.ids.shape[0] == B
      assert set(batch.eval_sample_weights) <= {0.0, 1.0}
      pads = batch.eval_sample_weights == 0
      assert not batch['weights'][pads].any()
      assert batch.paddings[pads].all()
      found.update(testing.texts(batch, weighted=True))
    assert shard.num_samples == count
    with pytest.raises(StopIteration):
      shard.get_next()
  expected = _all_texts(params)
  assert len(set(expected)) == count
  assert found == collections.Counter(expected)
  assert all(s == shapes[0] for s in shapes)


def test_batches_have_the_length_of_their_bucket(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(50))
  batches = testing.drain(adapt(testing.letters_params(pattern)))
  assert {b.ids.shape for b in batches} == {(B, 11), (B, 21), (B, 41)}
  for batch in batches:
    shorter = {11: 0, 21: 11, 41: 21}[batch.ids.shape[1]]
    real = batch.eval_sample_weights > 0
    lengths = (1 - batch.paddings[real]).sum(axis=1)
    assert (lengths > shorter).all()


def test_hosts_take_successive_slices_of_a_global_batch(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(3 * B))
  params = testing.letters_params(pattern)
  expected = _all_texts(params)
  shards = [
    adapt(params, num_infeed_hosts=2, infeed_host_index=h) for h in (0, 1)
  ]
  first, second = (testing.drain(s) for s in shards)
  assert testing.texts(first[0]) == expected[:B]
  assert testing.texts(second[0]) == expected[B : 2 * B]
  assert testing.texts(first[1]) == expected[2 * B :]
  # The second host has no real example left, but a batch.
  assert not second[1].eval_sample_weights.any()
  np.testing.assert_array_equal(second[1].ids[0], first[1].ids[0])


def test_reset_gives_the_same_again(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(30))
  adaptor = adapt(testing.lm_params(pattern, file_random_seed=301))
  whole = testing.drain(adaptor)
  adaptor.reset()
  testing.assert_same(testing.drain(adaptor), whole)
  adaptor.reset()
  adaptor.get_next()  # A reset in the midst of an epoch.
  adaptor.reset()
  testing.assert_same(testing.drain(adaptor), whole)


def test_num_batches_cuts_the_epoch(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(20))
  adaptor = adapt(testing.lm_params(pattern), num_batches=2)
  assert len(testing.drain(adaptor)) == 2
  adaptor.reset()
  assert len(testing.drain(adaptor)) == 2


def test_closing_mid_epoch_does_not_hang(adapt, tmp_path):
  # Lingvo's reader is destroyed in vain where its data has come to the end
  # while batches are left.
  for count in (5 * B, 40 * B):
    lines = testing.unique_lines(count)
    pattern = testing.write_lines(tmp_path / 'a.txt', lines)
    for _ in range(3):
      adaptor = adapt(testing.lm_params(pattern))
      adaptor.get_next()
      adaptor.close()


def test_process_ends_without_close(tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(20))
  code = f"""
from adaptors import lingvo_input
from tests.adaptors.lingvo_input import generators as testing
adaptor = lingvo_input.LingvoEvalAdaptor(
  input=testing.lm_params({pattern!r}), batch_size=4, reset_for_eval=True
)
adaptor.get_next()
"""
  subprocess.run([sys.executable, '-c', code], check=True, cwd=_ROOT)


def test_user_params_stay(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(5))
  params = testing.lm_params(pattern, flush_every_n=3)
  before = params.ToText()
  testing.drain(adapt(params))
  assert params.ToText() == before


def test_fixed_batch_shape_is_read_example_by_example(adapt, tmp_path, log):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(7))
  params = testing.lm_params(pattern, fixed_input_shape=True)
  adaptor = adapt(params)
  for _ in range(2):
    batches = testing.drain(adaptor)
    assert sum(b.eval_sample_weights.sum() for b in batches) == 7
    adaptor.reset()
  assert 'read example by example' in log()


def test_wrong_num_samples_is_a_warning(adapt, tmp_path, log):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.unique_lines(7))
  adaptor = adapt(testing.lm_params(pattern, num_samples=5))
  testing.drain(adaptor)
  assert adaptor.num_samples == 7
  assert 'num_samples is 5, but the data gave 7 examples' in log()


def test_wrong_fields_are_refused_before_anything_is_built(adapt):
  # The pattern matches nothing: a reader that started would end the process.
  params = testing.lm_params('text:/no/such/file')
  with pytest.raises(errors.UserError, match='is_training is True'):
    adapt(params, is_training=True)
  with pytest.raises(errors.UserError, match='reset_for_eval is False'):
    adapt(params, reset_for_eval=False)
  for size in (None, 0, 2.0):
    with pytest.raises(errors.UserError, match='batch_size'):
      adapt(params, batch_size=size)
  with pytest.raises(errors.UserError, match='no file matches'):
    adapt(params)


def test_closing_leaves_no_thread_behind(adapt, tmp_path):
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(30))
  for _ in range(2):  # The first use starts TensorFlow's own pools.
    testing.drain(adapt(testing.lm_params(pattern)))
  adaptor = adapt(testing.lm_params(pattern))
  adaptor.get_next()
  adaptor.close()
  before = resources.threads()
  adaptor = adapt(testing.lm_params(pattern))
  adaptor.get_next()
  started = resources.threads() - before
  assert started
  adaptor.close()
  resources.wait_for_end(started)


def test_supplied_weights_are_kept_and_padding_has_weight_0(adapt):
  params = testing.numbers(6, weights=True)
  batches = testing.drain(adapt(params))
  assert [b.eval_sample_weights.tolist() for b in batches] == [
    [0.0, 0.5, 1.0, 1.5],
    [2.0, 2.5, 0.0, 0.0],
  ]
  assert batches[1].x.tolist() == [4, 5, 4, 4]


@pytest.mark.parametrize('fields', [{}, {'generated': True}])
def test_endless_input_is_found_out(adapt, fields):
  params = testing.numbers(30, repeat=True, **fields)
  with pytest.raises(errors.UserError, match='never ends|seems endless'):
    testing.drain(adapt(params))


def test_endless_input_is_found_out_by_num_samples(adapt):
  params = testing.numbers(30, repeat=True, generated=True).Set(num_samples=30)
  with pytest.raises(errors.UserError, match='twice the 30 of'):
    testing.drain(adapt(params))


def test_num_batches_bounds_an_endless_input(adapt):
  params = testing.numbers(30, repeat=True, generated=True)
  assert len(testing.drain(adapt(params, num_batches=5))) == 5


def test_leaves_without_a_common_batch_axis_are_refused(adapt):
  with pytest.raises(errors.UserError, match='no common batch axis'):
    testing.drain(adapt(testing.numbers(6, scalar=True)))


def test_hosts_tell_what_they_read_and_in_which_order(adapt, tmp_path):
  lines = testing.unique_lines(3 * B)
  params = testing.letters_params(
    testing.write_lines(tmp_path / 'a.txt', lines)
  )
  swapped = testing.letters_params(
    testing.write_lines(tmp_path / 'b.txt', [*lines[:-2], lines[-1], lines[-2]])
  )
  first, second, other = (
    adapt(p, num_infeed_hosts=2, infeed_host_index=host)
    for p, host in ((params, 0), (params, 1), (swapped, 1))
  )
  found = []
  for data in (first, second, other):
    digests = [data.order_digest()]
    for _ in range(2):
      data.get_next()
      digests.append(data.order_digest())
    testing.drain(data)
    found.append([*digests, data.order_digest()])
  assert found[0] == found[1]
  assert found[0][0] == found[2][0]
  assert found[0][-1] != found[2][-1]
  assert len(set(found[0])) >= 3
  first.reset()
  assert first.order_digest() == found[0][0]
  testing.drain(first)
  assert first.order_digest() == found[0][-1]
  assert adapt(params).order_digest() is None
