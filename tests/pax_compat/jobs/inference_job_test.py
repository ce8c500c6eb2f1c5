"""Tests of inference jobs: a user's runner, and the files that it leaves."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_inference_runner, errors, tasks_lib
from pax_compat.experiments import resolved
from pax_compat.jobs import job, job_options
from pax_compat.nested_map import NestedMap
from tests.pax_compat.trainer import lines


class Predictions(base_inference_runner.BaseInferenceRunner):
  """The predictions of a line, and what it is given.

  Attributes:
    dtype: that the schema says.
  """

  dtype: str = 'float32'

  def infer(self, train_state, prng_key, var_weight_hparams, input_batch):
    assert not train_state.opt_state and set(var_weight_hparams) == {'w', 'b'}
    y = self.model.apply(
      train_state.mdl_vars, input_batch, method='compute_predictions'
    )
    steps = jnp.full(len(y), train_state.step)
    return NestedMap(y=y, inner=NestedMap(x=input_batch.x, steps=steps))

  @property
  def output_schema(self):
    return NestedMap(
      y=jax.ShapeDtypeStruct([], np.dtype(self.dtype)),
      inner=NestedMap(
        x=jax.ShapeDtypeStruct([lines.DIMS], np.float32),
        steps=jax.ShapeDtypeStruct([], np.int32),
      ),
    )


def _task(runner=None, **writer):
  task = lines.task(num_train_steps=4, save_interval_steps=2)
  runner = Predictions.config() if runner is None else runner
  task.infer_writer = tasks_lib.InferWriter.config(
    inference_runner=runner, **writer
  )
  return task


def _infer(folder, task, **options):
  printed = []
  job.run(
    resolved.resolve(lines.Lines(task), name='lines'),
    job_log_dir=str(folder),
    job=job_options.JobOptions(mode='infer', **options),
    print_line=printed.append,
  )
  return printed[2:]


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp('trained') / 'run'
  lines.Lines(_task()).train(folder)
  return folder


def _weights(steps):
  _, w, b = lines.losses(steps, w=np.full(lines.DIMS, 0.5), b=0.0)
  return w, b


def test_each_example_is_in_one_shard(trained):
  [line] = _infer(trained, _task(output_num_shards=4))
  folder = trained / 'infer_out' / 'few' / 'step_4'
  assert line == f'step 4  infer few: 6 examples in {folder}'
  files = sorted(folder.iterdir())
  assert [file.name for file in files] == [
    f'output-0000{i}-of-00004.jsonl' for i in range(4)
  ]
  shards = [
    [json.loads(x) for x in file.read_text().splitlines()] for file in files
  ]
  assert list(map(len, shards)) == [2, 2, 1, 1]
  # Example n is in shard n modulo 4; padding rows are left out.
  (w, b), x = _weights(4), lines.rows(0, count=6).x
  for n in range(6):
    found = shards[n % 4][n // 4]
    assert found['inner.steps'] == 4
    np.testing.assert_array_equal(np.float32(found['inner.x']), x[n])
    np.testing.assert_allclose(found['y'], x[n] @ w + b, rtol=1e-5)


def test_arrays_of_one_step(trained, tmp_path):
  task = _task(
    output_format='npz',
    output_num_shards=2,
    restore_checkpoint_dir=str(trained),
    restore_checkpoint_step=2,
  )
  _infer(tmp_path, task)
  folder = tmp_path / 'infer_out' / 'few' / 'step_2'
  w, b = _weights(2)
  for shard in range(2):
    with np.load(folder / f'output-0000{shard}-of-00002.npz') as read:
      x = lines.rows(0, count=6).x[shard::2]
      assert set(read['inner.steps']) == {2}
      np.testing.assert_array_equal(read['inner.x'], x)
      np.testing.assert_allclose(read['y'], x @ w + b, rtol=1e-5)
  # The flag has precedence.
  [line] = _infer(tmp_path, task, steps=(4,))
  assert line.startswith('step 4  infer few: 6 examples in ')


@pytest.mark.slow  # It imports TensorFlow.
def test_records_that_tensorflow_reads(trained):
  _infer(trained, _task(output_format='tfrecord', output_num_shards=2))
  folder = trained / 'infer_out' / 'few' / 'step_4'
  tf = pytest.importorskip('tensorflow')
  features = {
    'y': tf.io.FixedLenFeature([], tf.float32),
    'inner/x': tf.io.FixedLenFeature([lines.DIMS], tf.float32),
    'inner/steps': tf.io.FixedLenFeature([], tf.int64),
  }
  w, b = _weights(4)
  for shard in range(2):
    file = folder / f'output.tfrecord-0000{shard}-of-00002'
    records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    read = tf.io.parse_example(records, features)
    x = lines.rows(0, count=6).x[shard::2]
    assert set(read['inner/steps'].numpy()) == {4}
    np.testing.assert_array_equal(read['inner/x'], x)
    np.testing.assert_allclose(read['y'], x @ w + b, rtol=1e-5)


def test_outputs_that_are_not_as_the_schema_says(trained):
  shutil.rmtree(trained / 'infer_out', ignore_errors=True)
  task = _task(Predictions.config(dtype='int32'))
  with pytest.raises(errors.UserError) as e:
    _infer(trained, task)
  assert str(e.value) == (
    'infer() returns other outputs than output_schema, of 4 examples:\n'
    '  y: expected int32[4], got float32[4]'
  )
  files = (trained / 'infer_out').rglob('*')
  assert not [file for file in files if file.is_file()]
