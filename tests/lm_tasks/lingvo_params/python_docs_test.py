"""Tests of `lm_tasks.lingvo_params.python_docs` in real Lingvo."""

import math

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_registry import lookup, mounts
from lm_tasks import python_docs_text
from pax_compat import experiment_sources

NAME = 'lm.python_docs.TransformerLmTiny'


@pytest.fixture(scope='module')
def model_params(tmp_path_factory):
  """Returns the experiment from Lingvo's registry, mounted as when installed.

  Its text is written to a folder of the test.
  """
  site = tmp_path_factory.mktemp('site')
  info = site / 'python_docs-1.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: python_docs\n')
  (info / 'entry_points.txt').write_text(
    f'[{mounts.GROUP}]\nlm = lm_tasks.lingvo_params\n'
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(site)
    patch.setenv('XDG_CACHE_HOME', str(site))
    options = experiment_sources.SourceOptions()
    yield lookup.find_model_params(NAME, options)


def _batches(input_params, count, **cluster_options):
  """Returns `count` batches of the real input generator, as numpy arrays."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  tf = lingvo_runtime.module('tensorflow')
  with lingvo_runtime.cluster(**cluster_options):
    py_utils.SetEagerMode(False, test_mode=True)
    try:
      generator = input_params.Instantiate()
      get_next = tf.function(generator.GetPreprocessedInputBatch)
      return [get_next().Transform(lambda x: x.numpy()) for _ in range(count)]
    finally:
      py_utils.SetEagerMode(True)


def test_it_is_registered_under_its_name(model_params):
  assert type(model_params).__name__ == 'TransformerLmTiny'
  registry = lingvo_runtime.module('lingvo.model_registry')
  assert NAME in registry._ModelRegistryHelper.GetAllRegisteredClasses()
  listed = lookup.names(experiment_sources.SourceOptions())
  assert 'decoder' in listed[NAME]


@pytest.fixture(scope='module')
def train_batches(model_params):
  return _batches(model_params.Train(), 12)


def test_training_batches_have_the_fields_of_lm_input(train_batches):
  sizes = set()
  for batch in train_batches:
    size = len(batch.ids)
    sizes.add(size)
    assert batch.ids.shape == (size, 256)
    for field in ('labels', 'paddings', 'weights'):
      assert batch[field].shape == batch.ids.shape
    assert batch.word_count.shape == (size,)
    np.testing.assert_array_equal(batch.weights, 1 - batch.paddings)
    # Each input is the label before it, after a start of sequence.
    assert (batch.ids[:, 0] == 1).all()
    np.testing.assert_array_equal(
      (batch.ids[:, 1:] - batch.labels[:, :-1]) * batch.weights[:, 1:], 0
    )
  assert len(sizes) > 1 and sizes <= {16, 32, 64}


def test_words_of_a_bucket_bound_its_characters(train_batches):
  longest = {64: 64, 32: 128, 16: 256}
  for batch in train_batches:
    assert (batch.bucket_keys == batch.word_count).all()
    assert batch.weights.sum(axis=1).max() <= longest[len(batch.ids)]


@pytest.mark.parametrize('dataset', ['Dev', 'Test'])
def test_held_out_sets_are_read_once(model_params, dataset):
  split = dataset.lower()
  lines = python_docs_text.corpus().splits[split]
  input_params = model_params.GetDatasetParams(dataset)
  assert input_params.num_samples == len(lines)
  # As Lingvo's BaseTask does in evaluation.
  input_params.flush_every_n = input_params.num_samples
  batches = _batches(
    input_params, model_params._NumBatches(split), do_eval=True
  )
  lengths = np.concatenate([batch.weights.sum(axis=1) for batch in batches])
  assert sorted(lengths) == sorted(len(line) + 1 for line in lines)


def test_untrained_loss_is_near_chance(model_params, train_batches):
  tf = lingvo_runtime.module('tensorflow')
  with lingvo_runtime.cluster():
    p = model_params.Model().task
    p.input = model_params.Train()
    task = p.Instantiate()
    batch = train_batches[0].Transform(tf.constant)
    metrics, _ = task.FPropTower(task.theta, batch)
  loss, weight = (x.numpy() for x in metrics['loss'])
  assert np.isfinite(loss)
  assert abs(loss - math.log(76)) < 1.5
  assert weight == train_batches[0].weights.sum()
  count = sum(np.prod(v.shape) for v in task.vars.Flatten())
  assert 0.7e6 < count < 0.9e6


def test_schedule_evaluates_all_of_dev(model_params):
  schedule = model_params.ProgramSchedule()
  assert schedule.train_program.steps_per_loop == model_params.STEPS_PER_EVAL
  assert schedule.dataset_names == ['Dev']
  (evaluation,) = schedule.eval_programs
  assert evaluation.steps_per_loop == model_params._NumBatches('dev')
