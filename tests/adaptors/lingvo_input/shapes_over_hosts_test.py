"""Which shapes batches have, where the generator makes them up as it goes."""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_input import eval_adaptors, input_adaptor
from adaptors.lingvo_input.shapes import bucket_shapes
from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers.models import sequence_model
from pax_compat.layers.transformers import stacked_transformers
from pax_compat.nested_map import NestedMap
from tests.adaptors.lingvo_input import generators as testing
from tests.pax_compat.layers import token_batches

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


def test_two_hosts_feed_one_shape_at_each_step_of_a_replay(params):
  hosts = [
    input_adaptor.LingvoInputAdaptor(
      input=params,
      is_training=True,
      replay=True,
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
  assert found == {((4, 7), (4, 7)), ((2, 11), (2, 11))}
  for host in hosts:
    host.close()


@pytest.fixture(name='epochs', scope='module')
def _epochs(params):
  """Returns the batches of an epoch of one host: padded, and as they come."""
  once = params.Copy().Set(repeat_count=1)
  epochs = []
  for pads in (True, False):
    data = input_adaptor.LingvoInputAdaptor(
      input=once, is_training=True, pad_to_bucket_bounds=pads
    )
    epochs.append(testing.drain(data))
    data.close()
  return epochs


def test_one_host_feeds_a_shape_for_each_bucket(epochs):
  padded, bare = epochs
  assert len({_shapes(b) for b in bare}) > 10
  shapes = {(b.src.ids.shape, b.tgt.ids.shape) for b in padded}
  assert shapes == {((4, 7), (4, 7)), ((2, 11), (2, 11))}
  for batch, short in zip(padded, bare, strict=True):
    parts = dict(short.flatten_items())
    for path, x in batch.flatten_items():
      part = parts[path]
      np.testing.assert_array_equal(x[tuple(map(slice, part.shape))], part)
      if part.ndim == 2:
        added = 1 if path.endswith('paddings') else 0
        assert (x[:, part.shape[1] :] == added).all()


def test_padding_to_the_bucket_changes_no_loss(epochs):
  config = sequence_model.SequenceModel.config()
  network = config.model_tpl.set(model_dims=4)
  network.softmax_tpl.num_classes = EXAMPLES + 10
  for side in ('encoder', 'decoder'):
    stack = stacked_transformers.StackedTransformer.config(
      num_layers=1, hidden_dims=4, num_heads=2
    )
    setattr(network, f'{side}_stacked_transformer_tpl', stack)
  padded, bare = (batches[0] for batches in epochs)
  assert _shapes(padded) != _shapes(bare)
  weights = {PARAMS: token_batches.random_weights(config, bare)}
  metrics = jax.jit(config.Instantiate().apply)
  (got, _), (want, _) = (metrics(weights, batch) for batch in (padded, bare))
  for name, (mean, weight) in want.items():
    np.testing.assert_allclose(got[name], (mean, weight), rtol=1e-6)


def test_lengths_that_the_params_say_stay():
  """Targets of utterances are padded to `target_max_length`, always."""
  params = lingvo_runtime.module('lingvo.core.hyperparams').Params()
  for name, value in dict(
    bucket_upper_bound=[20, 50],
    bucket_batch_limit=[2, 2],
    source_max_length=None,
    target_max_length=30,
  ).items():
    params.Define(name, value, '')

  def fitted(buckets, target_length, key):
    def part(length):
      return NestedMap(paddings=np.zeros([2, length], np.float32))

    batch = NestedMap(
      src=part(key), tgt=part(target_length), bucket_keys=np.array([1, key])
    )
    batch = buckets.fit(batch, 2, jax.tree.map(lambda x: None, batch))
    return batch.src.paddings.shape[1], batch.tgt.paddings.shape[1]

  def buckets():
    return bucket_shapes.Buckets(params, fit_lengths=True)

  utterances = buckets()
  assert fitted(utterances, 30, key=17) == (21, 30)
  assert fitted(utterances, 30, key=44) == (51, 30)
  # Of sentences one may be as long by chance.
  sentences = buckets()
  assert fitted(sentences, 29, key=44) == (51, 51)
  assert fitted(sentences, 30, key=45) == (51, 51)


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


def test_an_input_without_buckets_must_have_one_shape():
  data = input_adaptor.LingvoInputAdaptor(
    input=testing.numbers(7, batch=5), is_training=True, num_infeed_hosts=2
  )
  assert data.get_next().x.shape == (5,)
  with pytest.raises(errors.UserError, match=r'comes one of .*\(2,\)'):
    data.get_next()
  data.close()


def test_other_shapes_on_several_hosts_are_refused():
  check = bucket_shapes.OneShape('the input')
  check(NestedMap(ids=np.zeros([4, 7])))
  check(NestedMap(ids=np.zeros([4, 7])))
  with pytest.raises(errors.UserError, match=r'\(4, 7\).*comes one of .*4, 8'):
    check(NestedMap(ids=np.zeros([4, 8])))
