"""Evaluations of data without an end: as many examples as Lingvo reads."""

import pytest

from adaptors.lingvo_input import eval_adaptors
from pax_compat import errors
from tests.adaptors.lingvo_input import generators as testing

B = 4


@pytest.fixture(name='evaluated')
def _evaluated(adapt):
  """Returns a function that makes an input for evaluations."""

  def make(params, **fields):
    fields = {'batch_size': B, 'reset_for_eval': True, **fields}
    return adapt(params, cls=eval_adaptors.LingvoEvalAdaptor, **fields)

  return make


def _count(adaptor) -> int:
  batches = testing.drain(adaptor)
  return int(sum(batch.eval_sample_weights.sum() for batch in batches))


def test_of_data_that_never_ends_the_first_examples(evaluated, log):
  """Lingvo reads whole batches."""
  adaptor = evaluated(testing.numbers(7, repeat=True), eval_samples=10)
  assert 'its first 12 examples' in log()
  assert 'it never ends and Lingvo reads as many (eval.samples_' in log()
  first = testing.drain(adaptor)
  assert [batch.x.tolist() for batch in first] == [
    [0, 1, 2, 3],
    [4, 5, 6, 0],
    [1, 2, 3, 4],
  ]
  adaptor.reset()
  testing.assert_same(testing.drain(adaptor), first)
  assert adaptor.num_samples == 12


def test_of_data_that_ends_all_of_it(evaluated, log):
  adaptor = evaluated(testing.numbers(17), eval_samples=10, eval_steps=1)
  assert _count(adaptor) == 17
  assert 'reads its first' not in log()


def test_batches_of_the_schedule(evaluated):
  """Each host reads as many batches."""
  endless = testing.numbers(7, repeat=True)
  assert _count(evaluated(endless, eval_samples=1, eval_steps=2)) == 2 * B
  shards = [
    evaluated(endless, eval_steps=2, num_infeed_hosts=2, infeed_host_index=h)
    for h in (0, 1)
  ]
  assert [_count(shard) for shard in shards] == [2 * B, 2 * B]


def test_data_that_is_not_known_to_end(evaluated, log):
  unknown = testing.numbers(7, repeat=True, generated=True)
  assert _count(evaluated(unknown, eval_samples=8)) == 8
  assert 'as it is not known to end' in log()


def test_data_without_an_end_and_without_a_number(evaluated):
  """The error comes before training."""
  with pytest.raises(errors.UserError, match='never ends: an evaluation needs'):
    evaluated(testing.numbers(7, repeat=True), eval_samples=0)


def test_files_that_are_read_again_and_again(evaluated, tmp_path, log):
  """A schedule limits them, by the largest of Lingvo's batch sizes."""
  pattern = testing.write_lines(tmp_path / 'a.txt', testing.mixed_lines(50))
  params = testing.letters_params(pattern, bucket_batch_limit=[8, 4, 4])
  adaptor = evaluated(params, eval_steps=2, eval_samples=3)
  assert 'its first 16 examples' in log()
  assert 'its repeat_count is -1' in log()
  first = testing.drain(adaptor)
  assert sum(batch.eval_sample_weights.sum() for batch in first) == 16
  adaptor.reset()
  testing.assert_same(testing.drain(adaptor), first)
  # Each example counts once, however many batches Lingvo would read.
  assert _count(evaluated(params, eval_steps=20)) == 50
  # Without a schedule, or with an end, all of them.
  assert _count(evaluated(params, eval_samples=3)) == 50
  params.repeat_count = 1
  assert _count(evaluated(params, eval_steps=2, eval_samples=3)) == 50
