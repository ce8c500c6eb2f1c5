"""Tests of the C4 datasets, on the stand-in corpus."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from lm_tasks import c4_data, c4_pipeline, make_c4_stand_in
from pax_compat import errors, experiment_sources
from pax_compat.experiments import native_options
from pax_compat.trainer import partitioning, program
from pax_compat.trainer.feeding import dataset_inputs

_SEQ_LEN = 64


class Experiment(c4_data.C4UnsupervisedDataset):
  PERCORE_BATCH_SIZE = 4
  MAX_SEQ_LEN = _SEQ_LEN

  def task(self):
    raise NotImplementedError


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The stand-in corpus."""
  folder = tmp_path_factory.mktemp('c4')
  make_c4_stand_in.make(folder, pieces=500)
  return folder


@pytest.fixture(scope='module')
def inputs(folder):
  """The training and the validation data."""
  found = [
    config.set(tfds_data_dir=str(folder)).Instantiate()
    for config in Experiment().datasets()
  ]
  yield found
  for data in found:
    data.close()


@pytest.mark.parametrize(
  ('percore', 'wanted'), [(32, (32, 1)), (1.5, (1, 1)), (0.25, (1, 1))]
)
def test_batch_sizes_of_one_device(percore, wanted):
  sizes = c4_data.batch_sizes(percore)
  assert (sizes['batch_size'], sizes['num_infeed_hosts']) == wanted


def test_training_rows_are_packed_text(inputs):
  data, _ = inputs
  batches = [data.get_next() for _ in range(40)]
  ids, labels, segments = (
    np.concatenate([batch[name] for batch in batches])
    for name in ('ids', 'labels', 'segment_ids')
  )
  assert ids.shape == (160, _SEQ_LEN) and ids.max() < 500
  np.testing.assert_array_equal(labels[:, :-1], ids[:, 1:])
  assert (segments > 0).mean() > 0.99
  text = data.ids_to_strings(ids[:1], np.array([_SEQ_LEN]))[0]
  assert len(text.split()) > 10


def test_evaluation_reads_each_tokenized_row_once(inputs, folder):
  _, data = inputs
  info = json.loads((folder / 'c4/en/3.0.5/dataset_info.json').read_text())
  [split] = info['splits']
  count = 0
  data.reset()
  with pytest.raises(StopIteration):
    while True:
      batch = data.get_next()
      count += int(batch.eval_sample_weights.sum())
  assert count == sum(map(int, split['shardLengths'])) > 8
  assert not {'segment_ids'} & {k for k, v in batch.items() if v.max() > 1}


@pytest.mark.slow
def test_tokens_cached_by_beam_are_the_same(folder, tmp_path):
  program = pathlib.Path(sys.executable).parent / 'seqio_cache_tasks'
  subprocess.run(
    [
      program,
      '--module_import=lm_tasks.c4_tasks',
      '--tasks=c4_lm_v301_gpt',
      f'--tfds_data_dir={folder}',
      f'--output_cache_dir={tmp_path}',
      '--min_shards=2',
      # In this process; the default runner would be downloaded.
      '--pipeline_options=--runner=FnApiRunner',
    ],
    check=True,
  )
  # The text is not needed.
  cached = dict(
    tfds_data_dir=str(tmp_path),
    use_cached=True,
    additional_cache_dirs=[str(tmp_path)],
  )
  counts = [
    _token_counts(tfds_data_dir=str(folder)),
    _token_counts(**cached),
  ]
  assert counts[0].sum() > 70_000
  np.testing.assert_array_equal(*counts)


def _token_counts(**fields) -> np.ndarray:
  """Returns how often the training data has each id."""
  config = Experiment().datasets()[0]
  config.set(repeat=False, drop_remainder=False, shuffle=False, **fields)
  data, counts = config.Instantiate(), np.zeros(500, int)
  with pytest.raises(StopIteration):
    while True:
      batch = data.get_next()
      ids = batch.ids[batch.segment_ids > 0]
      counts += np.bincount(ids, minlength=500)
  data.close()
  return counts


@pytest.mark.slow
def test_two_hosts_read_other_rows(folder):
  config = Experiment().datasets()[0].set(tfds_data_dir=str(folder))
  # Shuffled, the first batches would differ of the same rows, too.
  config.shuffle = False
  rows = []
  for host in range(2):
    data = config.Instantiate(num_infeed_hosts=2, infeed_host_index=host)
    rows.append({row.tobytes() for row in data.get_next().ids})
    data.close()
  assert not rows[0] & rows[1]


def test_a_vocabulary_that_cannot_be_read(folder, tmp_path):
  config = Experiment().datasets()[0].set(tfds_data_dir=str(folder))
  (tmp_path / 'bad.model').write_bytes(b'not a model')
  for name in ('none.model', 'bad.model'):
    config.vocabulary_path = str(tmp_path / name)
    with pytest.raises(errors.UserError, match=f'{name} cannot be read'):
      config.Instantiate()


def test_a_folder_without_the_dataset(tmp_path, folder):
  config = Experiment().datasets()[1].set(tfds_data_dir=str(tmp_path))
  with pytest.raises(
    errors.UserError, match='c4/en:3.0.5 in .* cannot be read'
  ):
    config.Instantiate()
  config.set(tfds_data_dir=str(folder), split_name='validation')
  with pytest.raises(errors.UserError, match='has no split .validation'):
    config.Instantiate()


def test_another_task_has_no_vocabulary_path():
  config = (
    Experiment()
    .datasets()[0]
    .set(mixture_name='my_task', vocabulary_path='some.model')
  )
  with pytest.raises(errors.UserError, match='vocabulary_path is for the task'):
    config.Instantiate()
  config.vocabulary_path = None
  with pytest.raises(errors.UserError, match='unknown SeqIO task .* .my_task'):
    config.Instantiate()


def test_the_stand_in_is_made_once(folder, tmp_path):
  path = folder / c4_pipeline.VOCABULARY_FILE
  before = path.stat().st_mtime_ns
  make_c4_stand_in.make(folder)
  assert path.stat().st_mtime_ns == before
  (tmp_path / 'mine.txt').touch()
  with pytest.raises(errors.UserError, match='expected a new or empty folder'):
    make_c4_stand_in.make(tmp_path)


@pytest.mark.slow
def test_a_loss_falls(folder):
  found = experiment_sources.find(
    'tasks.lm.params.c4.C4Spmd1BAdam4Replicas',
    experiment_sources.SourceOptions(
      attributes=(
        'ICI_MESH_SHAPE=[1,1,1]',
        'NUM_LAYERS=1',
        'MODEL_DIMS=32',
        'HIDDEN_DIMS=64',
        'NUM_HEADS=2',
        'DIMS_PER_HEAD=16',
        'VOCAB_SIZE=500',
        f'MAX_SEQ_LEN={_SEQ_LEN}',
        'PERCORE_BATCH_SIZE=8',
        'LEARNING_RATE=0.01',
        'LR_LRED_WARMUP=10',
        'LR_LRED_DECAY_START=11',
      ),
      own=(native_options.NativeOptions(tfds_data_dir=str(folder)),),
    ),
  )
  task = found.task().Instantiate()
  mesh = partitioning.create_mesh([1, 1, 1], ['replica', 'data', 'mdl'])
  with dataset_inputs.Inputs(found.datasets()) as data:
    batch = data.train.get_next()
    made = program.create(task, mesh, batch)
    state, losses = made.init_state(batch), []
    for _ in range(40):
      state, metrics = made.train_step(state, batch)
      losses.append(float(metrics['total_loss']))
      batch = data.train.get_next()
  assert losses[0] > 5.5 and np.mean(losses[-5:]) < losses[0] - 1
