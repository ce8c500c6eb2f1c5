"""SeqIO's tasks and mixtures as inputs: each example once, and resumable."""

import itertools
import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input import converters
from adaptors.seqio_input.reading import host_rows
from lm_tasks import model_params
from pax_compat import errors
from pax_compat.experiments import resolved
from pax_compat.trainer import run
from tests.adaptors.seqio_input import tiny_tasks as testing


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  with testing.common_tasks():
    yield


# Evaluation.


@pytest.mark.parametrize(
  ('count', 'batch_size', 'hosts'),
  [(0, 2, 2), (1, 2, 3), (2, 3, 2), (3, 3, 2), (4, 3, 1), (10, 2, 3)],
)
def test_evaluation_has_each_example_once(count, batch_size, hosts):
  testing.register('some', count)
  params = testing.eval_config('some', batch_size=batch_size)
  inputs = testing.hosts(params, hosts)

  for _ in range(2):
    read = [testing.read(data) for data in inputs]
    assert {len(x) for x in read} == {-(-count // (batch_size * hosts))}
    assert sorted(sum(map(testing.numbers, read), [])) == list(range(count))
    for data in inputs:
      assert data.num_samples == count
      data.reset()
  assert testing.global_texts(inputs) == testing.answers(count)


def test_the_default_name_is_the_task_and_split():
  config = testing.eval_config('ten', batch_size=2)
  del config.name
  assert config.Instantiate().name == f'{config.mixture_name}_validation'
  config.mixture_name = 'wmt/de en:v1'
  name = config.cls.default_name(config)
  assert name == 'wmt_de_en:v1_validation'


def test_padding_rows_have_weight_0_and_no_provenance():
  params = testing.eval_config(
    'ten', batch_size=4, annotate_padding_fields=True
  )
  [data] = testing.hosts(params, 1)

  batch = testing.read(data)[-1]

  assert batch.eval_sample_weights.tolist() == [1, 1, 0, 0]
  assert batch[host_rows.INDEX].tolist() == [8, 9, -1, -1]
  assert batch[host_rows.SHARD].tolist() == [0, 0, -1, -1]
  assert batch[host_rows.SHARDS].tolist() == [1, 1, -1, -1]
  assert batch.weights[1].sum() == 2 and not batch.weights[2:].any()
  assert batch.paddings[2:].all()
  kept = [k for k, v in batch.flatten_items() if data.is_host_field(k, v)]
  assert sorted(kept) == sorted(host_rows.PROVENANCE)


def test_the_first_batches_each_time():
  params = testing.eval_config('ten', eval_loop_num_batches=2)
  [data] = testing.hosts(params, 1)

  first = testing.texts(data, testing.read(data, 2))
  data.reset()

  assert (
    first == testing.texts(data, testing.read(data, 2)) == testing.answers(4)
  )
  # What comes after the batches that were kept is read on.
  assert testing.texts(data, testing.read(data, 1)) == ['a4', 'a5']


def test_the_next_batches_each_time():
  params = testing.eval_config(
    'seven', reset_for_eval=False, eval_loop_num_batches=2
  )
  inputs = testing.hosts(params, 2)

  found = [testing.global_texts(inputs, 2) for _ in range(2)]

  assert sum(found, []) == (testing.answers(7) * 3)[:16]
  targets = itertools.islice(inputs[0].targets(14), 2)
  assert [index for index, _ in targets] == [14, 15]


def test_all_of_the_data_without_a_reset_is_refused():
  params = testing.eval_config(
    'ten', reset_for_eval=False, eval_loop_num_batches=None
  )
  with pytest.raises(errors.UserError, match='reset_for_eval'):
    params.Instantiate()


def test_a_reset_drops_the_peeked_batch():
  data = testing.eval_config('ten').Instantiate()
  testing.read(data, 1)
  data.peek_padded()

  data.reset()

  assert testing.numbers([data.get_next_padded()]) == [0, 1]


@pytest.mark.parametrize('kept', [True, False])
def test_an_evaluation_is_the_same_each_time(kept):
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()

  @seqio.map_over_dataset(num_seeds=1)
  def noisy(example, seed):
    drawn = tf.random.stateless_uniform([3], seed, 10, 200, tf.int32)
    return {**example, 'targets': drawn}

  def shuffled(data):
    return data.shuffle(100, seed=3)  # Another order each time it is read.

  testing.register(
    'noisy', preprocessors=[shuffled, seqio.preprocessors.tokenize, noisy]
  )
  params = testing.eval_config('noisy', eval_enable_cache=kept)
  [data] = testing.hosts(params, 1)

  first = testing.read(data)
  data.reset()
  again = testing.read(data)

  for one, other in zip(first, again, strict=True):
    np.testing.assert_array_equal(one.labels, other.labels)
  targets = [example['targets'] for _, example in data.targets()]
  found = np.concatenate([batch.labels[:, :3] for batch in first])
  np.testing.assert_array_equal(found, targets)


@pytest.mark.parametrize('kept', [True, False])
def test_batches_may_be_cached_for_the_next_evaluation(kept):
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()
  readings = []

  def texts(split, shuffle_files, seed=None):
    del shuffle_files, seed
    readings.append(split)
    names = ('inputs', 'targets')
    return tf.data.Dataset.from_tensor_slices({n: ['a', 'b'] for n in names})

  testing.register(
    'counted', source=seqio.FunctionDataSource(texts, splits=['validation'])
  )
  params = testing.eval_config('counted', eval_enable_cache=kept)
  [data] = testing.hosts(params, 1)
  testing.read(data)
  once = len(readings)
  for _ in range(2):
    data.reset()
    testing.read(data)
  assert (len(readings) == once) == kept


def test_last_batches_that_are_too_small():
  dropped, short = [
    testing.eval_config(
      'ten', batch_size=4, eval_auto_pad=False, drop_remainder=drops
    ).Instantiate()
    for drops in (True, False)
  ]

  assert [len(batch.labels) for batch in testing.read(dropped)] == [4, 4]
  assert [index for index, _ in dropped.targets()] == list(range(8))
  assert [len(batch.labels) for batch in testing.read(short)] == [4, 4, 2]
  assert [index for index, _ in short.targets()] == list(range(10))


def test_other_counts_than_expected_are_logged(log):
  params = testing.eval_config('seven', eval_num_examples=7)
  inputs = testing.hosts(params, 2)
  for data in inputs:
    testing.read(data)

  assert 'is 7, but this host has 4 examples' in log()
  assert 'is 7, but this host has 3 examples' in log()


# What metrics get.


def test_targets_are_the_examples_of_the_rows():
  params = testing.eval_config(
    'ten',
    eval_metrics_targets_length=1,
    eval_metrics_filter_targets_fields=['targets', 'targets_pretokenized'],
  )
  [data] = testing.hosts(params, 1)

  found = dict(data.targets(first=7))

  assert sorted(found) == [7, 8, 9]
  assert found[8].keys() == {'targets', 'targets_pretokenized'}
  assert found[8]['targets_pretokenized'] == b'a8'
  np.testing.assert_array_equal(found[8]['targets'], [100])
  assert testing.read(data)[4].labels[0, :3].tolist() == [100, 59, 0]


def test_ragged_targets_are_one_row():
  tf = lingvo_runtime.tensorflow()
  seqio = lingvo_runtime.seqio()

  def with_choices(example):
    choices = tf.ragged.constant([[1, 2], [3]], dtype=tf.int32)
    return {**example, 'choices': choices}

  testing.register(
    'ragged',
    2,
    preprocessors=[
      lambda data: data.map(with_choices),
      seqio.preprocessors.tokenize,
    ],
  )
  data = testing.eval_config('ragged').Instantiate()

  [[_, example], _] = data.targets()

  np.testing.assert_array_equal(example['choices'], [[1, 2, 3]])
  with pytest.raises(errors.UserError, match="'choices' is ragged"):
    testing.eval_config(
      'ragged', feature_converter=converters.RemoveProvenance()
    ).Instantiate()


def test_targets_of_a_source_that_differs_each_time():
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()

  def drawn(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    return tf.data.Dataset.range(5).map(
      lambda _: {
        name: tf.strings.as_string(tf.random.uniform([], 0, 10**6, tf.int32))
        for name in ('inputs', 'targets')
      }
    )

  testing.register(
    'drawn', source=seqio.FunctionDataSource(drawn, splits=['validation'])
  )
  data = testing.eval_config(
    'drawn', use_targets_from_input_ds=True, eval_metrics_targets_length=20
  ).Instantiate()

  for _ in range(2):
    batches = testing.read(data)
    targets = [x['targets_pretokenized'].decode() for _, x in data.targets()]
    assert testing.texts(data, batches) == targets
    data.reset()


def test_specs_are_known_without_a_batch():
  params = testing.eval_config(
    'seven',
    batch_size=3,
    feature_converter=converters.LanguageModelFeatures(),
  )
  data = params.Instantiate()

  specs = data.batch_specs()

  [*_, batch] = testing.read(data)
  device = {
    name: (x.shape, x.dtype)
    for name, x in batch.flatten_items()
    if not data.is_host_field(name, x)
  }
  assert device == {n: (x.shape, x.dtype) for n, x in specs.flatten_items()}
  # Before anything is built, too.
  assert params.cls.specs_of_config(params) == specs


def test_digests_of_another_order_differ():
  testing.register('some', 5)
  one, other = testing.hosts(testing.eval_config('some'), 2)
  testing.register('some', 6)
  third = testing.eval_config(
    'some', num_infeed_hosts=2, infeed_host_index=1
  ).Instantiate()

  for data in (one, other, third):
    testing.read(data)

  assert one.order_digest() == other.order_digest() != third.order_digest()


def test_a_closed_input_raises():
  data = testing.config('ten').Instantiate()
  data.close()
  with pytest.raises(RuntimeError, match='is closed'):
    data.get_next()


def test_configs_do_not_import_tensorflow():
  script = (
    'import sys\n'
    'from adaptors import seqio_input\n'
    'config = seqio_input.SeqIOInput.config(\n'
    '  feature_converter=seqio_input.LanguageModelFeatures(pack=True))\n'
    'config.clone()\n'
    "print({'tensorflow', 'seqio'} & set(sys.modules))\n"
  )
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, check=True
  )
  assert done.stdout == 'set()\n'


def test_a_language_model_trains_and_is_evaluated(tmp_path):
  lengths = {'inputs': 4, 'targets': 4}

  class Tiny(model_params.TransformerLmSpmdAdafactor):
    VOCAB_SIZE, MODEL_DIMS, HIDDEN_DIMS, NUM_LAYERS = 259, 8, 16, 1
    NUM_HEADS, DIMS_PER_HEAD, MAX_SEQ_LEN, LEARNING_RATE = 2, None, 8, 0.05
    EVAL_INTERVAL_STEPS, SUMMARY_INTERVAL_STEPS = 6, 1
    FPROP_DTYPE = jnp.float32

    def task(self):
      task = super().task()
      model_params.set_default_adam(task, self.LEARNING_RATE, 1e-3)
      task.train.num_train_steps = 12
      return task

    def datasets(self):
      train = testing.config(
        'both',
        name='train',
        batch_size=4,
        task_feature_lengths=lengths,
        feature_converter=converters.LanguageModelFeatures.config(pack=True),
      )
      dev = testing.eval_config(
        'ten',
        name='dev',
        batch_size=4,
        task_feature_lengths=lengths,
        feature_converter=converters.LanguageModelFeatures(),
      )
      return [train, dev]

  run.train(resolved.resolve(Tiny(), name='Tiny'), job_log_dir=tmp_path)

  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  found = {
    (x['split'], x['step'], x['name']): x['value']
    for x in map(json.loads, lines)
  }
  assert found['eval_dev', 12, 'loss'] < found['eval_dev', 6, 'loss'] < 6
  assert found['eval_dev', 12, 'num_batches'] == 3
