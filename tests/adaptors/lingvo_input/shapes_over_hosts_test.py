"""Which shapes batches have, where the generator makes them up as it goes."""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import (
  bucket_shapes,
  eval_adaptors,
  input_adaptor,
)
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators as testing

EXAMPLES = 60


@pytest.fixture(name='params', scope='module')
def _params(tmp_path_factory):
  """Returns Params of an NmtInput, which pads to the longest of each batch."""
  tf = lingvo_runtime.module('tensorflow')
  generators = lingvo_runtime.module('lingvo.tasks.mt.input_generator')
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp('pairs') / 'pairs.tfrecord'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for number in range(EXAMPLES):
      ids = {
        side: [number + 1, *rng.integers(1, 9, rng.integers(1, 8))]
        for side in ('source', 'target')
      }
      writer.write(_example(tf, **ids))
  return generators.NmtInput.Params().Set(
    file_pattern=f'tfrecord:{path}',
    file_random_seed=0,
    file_parallelism=1,
    file_buffer_size=16,
    bucket_upper_bound=[6, 10],
    bucket_batch_limit=[4, 2],
  )


def _example(tf, source, target) -> bytes:
  def numbers(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

  def fractions(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))

  features = dict(
    source_id=numbers(source),
    source_padding=fractions([0.0] * len(source)),
    target_id=numbers(target),
    target_padding=fractions([0.0] * len(target)),
    target_label=numbers(target),
    target_weight=fractions([1.0] * len(target)),
  )
  return tf.train.Example(
    features=tf.train.Features(feature=features)
  ).SerializeToString()


def _shapes(batch) -> str:
  return str(jax.tree.map(np.shape, batch))


@pytest.mark.parametrize('replay', [False, True])
def test_two_hosts_feed_one_shape_at_each_step(params, replay):
  hosts = [
    input_adaptor.LingvoInputAdaptor(
      input=params,
      is_training=True,
      replay=replay,
      num_infeed_hosts=2,
      infeed_host_index=host,
    )
    for host in (0, 1)
  ]
  found = set()
  for _ in range(40):
    first, second = (host.get_next() for host in hosts)
    assert _shapes(first) == _shapes(second)
    found.add((first.src.ids.shape, first.tgt.ids.shape))
    assert (first.src.paddings[first.src.ids == 0] == 1).all()
    assert not first.tgt.weights[first.tgt.paddings == 1].any()
  of_buckets = {((4, 7), (4, 7)), ((2, 11), (2, 11))}
  assert found == (of_buckets if replay else {((4, 11), (4, 11))})
  for host in hosts:
    host.close()


def test_an_evaluation_has_a_shape_for_each_bucket(params):
  data = eval_adaptors.LingvoEvalAdaptor(
    input=params, batch_size=3, reset_for_eval=True
  )
  batches = testing.drain(data)
  data.close()
  shapes = {(b.src.ids.shape, b.tgt.ids.shape) for b in batches}
  assert shapes == {((3, 7), (3, 7)), ((3, 11), (3, 11))}
  numbers = [
    n for b in batches for n in b.src.ids[b.eval_sample_weights > 0, 0]
  ]
  assert sorted(numbers) == list(range(1, EXAMPLES + 1))


def test_lengths_that_are_fixed_stay(params):
  params = params.Copy().Set(
    pad_to_max_seq_length=True,
    source_max_length=8,
    target_max_length=9,
    bucket_batch_limit=[4, 4],
  )
  data = input_adaptor.LingvoInputAdaptor(
    input=params, is_training=True, num_infeed_hosts=2
  )
  for _ in range(10):
    batch = data.get_next()
    assert batch.src.ids.shape == (4, 8) and batch.tgt.ids.shape == (4, 9)
  data.close()


def test_other_shapes_on_several_hosts_are_refused():
  check = bucket_shapes.OneShape('the input')
  check(NestedMap(ids=np.zeros([4, 7])))
  check(NestedMap(ids=np.zeros([4, 7])))
  with pytest.raises(errors.UserError, match=r'\(4, 7\).*comes one of .*4, 8'):
    check(NestedMap(ids=np.zeros([4, 8])))
