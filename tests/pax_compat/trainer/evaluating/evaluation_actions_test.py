"""Tests of when runs evaluate and decode, and with which weights."""

import json

import numpy as np
import pytest

from pax_compat import errors
from tests.on_processes import evaluations
from tests.pax_compat import launching
from tests.pax_compat.trainer import lines


def _loss_of(rows, w, b):
  return float(np.mean((rows.x @ w + b - rows.y) ** 2))


def _weights(steps):
  _, w, b = lines.losses(steps, w=np.full(lines.DIMS, 0.5), b=0.0)
  return w, b


def test_evaluations_at_intervals_and_at_the_end(tmp_path):
  lines.train(tmp_path, num_train_steps=5, eval_interval_steps=2)
  dev = lines.metrics(tmp_path, 'eval_dev')
  assert lines.steps(tmp_path, 'eval_dev') == [2, 4, 5]
  for step in (2, 4, 5):
    want = _loss_of(lines.rows(0, count=10), *_weights(step))
    np.testing.assert_allclose(dev[step, 'loss'], want, rtol=1e-5)


def test_the_next_training_batch_is_evaluated_before_it_is_trained_on(tmp_path):
  lines.train(
    tmp_path, num_train_steps=5, eval_interval_steps=2, summary_interval_steps=1
  )
  found = lines.metrics(tmp_path, 'eval_train')
  trained = lines.metrics(tmp_path, 'train')
  assert lines.steps(tmp_path, 'eval_train') == [2, 4]
  for step in (2, 4):
    want = _loss_of(lines.rows(step * lines.BATCH), *_weights(step))
    np.testing.assert_allclose(found[step, 'loss'], want, rtol=1e-5)
    np.testing.assert_allclose(trained[step + 1, 'loss'], want, rtol=1e-5)


def test_the_training_batch_is_left_out(tmp_path):
  lines.train(tmp_path, eval_interval_steps=2, eval_skip_train=True)
  assert lines.steps(tmp_path, 'eval_dev') == [2, 4]
  assert not lines.metrics(tmp_path, 'eval_train')


def test_chosen_datasets_while_training_and_all_at_the_end(tmp_path):
  lines.train(
    tmp_path,
    eval_interval_steps=2,
    eval_during_training=(),
    eval_skip_train=True,
  )
  assert lines.steps(tmp_path, 'eval_dev') == [4]


def test_an_unknown_dataset_is_found_before_the_first_step(tmp_path):
  message = "has 'deb', which is not an eval dataset; did you mean: dev"
  with pytest.raises(errors.UserError, match=message):
    lines.train(tmp_path, eval_during_training=('deb',))
  assert not lines.steps(tmp_path, 'train')


class Named(lines.Lines):
  """Has an eval dataset that is called like the next training batch."""

  def datasets(self):
    return [
      lines.Rows.config(name='mine', is_training=True),
      lines.Rows.config(name='train', end=10, reset_for_eval=True),
    ]


def test_a_dataset_of_the_name_of_the_training_batch(tmp_path):
  task = lines.task(num_train_steps=2, eval_interval_steps=2)
  with pytest.raises(errors.UserError, match="dataset 'train' has the name"):
    Named(task).train(tmp_path / 'one')
  task.train.eval_skip_train = True
  Named(task).train(tmp_path / 'other')
  found = lines.metrics(tmp_path / 'other', 'eval_train')
  want = _loss_of(lines.rows(0, count=10), *_weights(2))
  np.testing.assert_allclose(found[2, 'loss'], want, rtol=1e-5)


@pytest.mark.parametrize(
  ('fields', 'steps'),
  [
    (dict(decode_interval_steps=None), []),
    (dict(decode_interval_steps=0), []),
    (dict(decode_interval_steps=2), [2, 4, 5]),
    (dict(decode_interval_steps=1, decode_start_after_n_steps=3), [3, 4, 5]),
  ],
)
def test_decoding_at_intervals(tmp_path, fields, steps):
  lines.train(tmp_path, num_train_steps=5, **fields)
  assert lines.steps(tmp_path, 'decode_few', 'num_decode_steps') == steps
  files = sorted((tmp_path / 'decode_out').rglob('*'))
  assert [path.name for path in files if path.is_file()] == [
    f'decode_out_{step}_shard_0.jsonl' for step in steps
  ]


@pytest.mark.parametrize('decoded', [True, False])
def test_averaged_weights(tmp_path, decoded):
  task = lines.task(
    num_train_steps=3,
    eval_interval_steps=3,
    eval_use_ema_states=True,
    eval_skip_train=True,
    decode_interval_steps=3,
    decode_use_ema_states=decoded,
  )
  task.train.learner.optimizer.ema_decay = 0.9
  lines.Lines(task).train(tmp_path)
  average = np.array([0.5] * lines.DIMS + [0.0])
  for step in range(3):
    w, b = _weights(step)
    decay = min(0.9, (1 + step) / (10 + step))
    average = decay * average + (1 - decay) * np.array([*w, b])
  want = _loss_of(lines.rows(0, count=10), average[:-1], average[-1])
  found = lines.metrics(tmp_path, 'eval_dev')[3, 'loss']
  np.testing.assert_allclose(found, want, rtol=1e-5)
  [file] = (tmp_path / 'decode_out' / 'few').iterdir()
  w, b = (average[:-1], average[-1]) if decoded else _weights(3)
  np.testing.assert_allclose(
    [example['value']['y'] for example in _read_lines(file)],
    lines.rows(0, count=6).x @ w + b,
    rtol=1e-4,
  )


@pytest.mark.parametrize('what', ['eval', 'decode'])
def test_averages_that_are_not_kept(tmp_path, what):
  with pytest.raises(
    errors.UserError, match=f'Train.{what}_use_ema_states .* an ema_decay'
  ):
    lines.train(tmp_path / 'run', **{f'{what}_use_ema_states': True})


def test_per_example_outputs_are_written_if_enabled(tmp_path):
  task = lines.task(num_train_steps=2, eval_interval_steps=2)
  lines.Lines(task).train(tmp_path / 'one')
  assert not (tmp_path / 'one' / 'eval_out').exists()
  task.evaluate.write_per_example_out = True
  lines.Lines(task).train(tmp_path / 'other')
  [file] = (tmp_path / 'other' / 'eval_out' / 'dev').iterdir()
  assert file.name == 'eval_out_2_shard_0.jsonl'
  assert len(file.read_text().splitlines()) == 10


def test_a_profile_of_each_decoding(tmp_path):
  task = lines.task(num_train_steps=1, decode_interval_steps=1)
  task.decode.set(profiler_num_steps=1, profiler_min_duration_sec=0.0)
  lines.Lines(task).train(tmp_path)
  folder = tmp_path / 'summaries' / 'decode_few'
  assert len(list(folder.rglob('*.xplane.pb'))) == 1


def test_two_processes_count_every_row_once(tmp_path):
  """The last batch of the second process has padding rows only."""
  first, second = launching.run_on_processes(
    evaluations.train_halves, 2, args=[tmp_path]
  )
  stopped = 'stops early after step 2, because'
  assert first.startswith(f'asked\n{stopped}') and second.startswith(stopped)
  rows = lines.rows(0, count=10)
  w, b = _weights(2)
  squares = (rows.x @ w + b - rows.y) ** 2
  found = lines.metrics(tmp_path, 'eval_dev')
  for name in ('loss', 'mean_square'):
    np.testing.assert_allclose(found[2, name], squares.mean(), rtol=1e-5)
  # Any other metric is a mean of its batches', which count as their rows do.
  largest = [squares[i : i + 4].max() for i in (0, 4, 8)]
  want = np.average(largest, weights=[4, 4, 2])
  np.testing.assert_allclose(found[2, 'largest'], want, rtol=1e-5)
  assert found[2, 'rows'] == 10

  files = sorted((tmp_path / 'eval_out' / 'dev').iterdir())
  assert [f.name for f in files] == [
    f'eval_out_2_shard_{process}.jsonl' for process in (0, 1)
  ]
  written = [_read_lines(file) for file in files]
  assert [len(examples) for examples in written] == [6, 4]
  written = [example['square'] for examples in written for example in examples]
  np.testing.assert_allclose(sorted(written), sorted(squares), rtol=1e-4)

  decoded = lines.metrics(tmp_path, 'decode_few')
  assert decoded[2, 'Metrics/decoded_rows'] == 6
  assert decoded[2, 'Metrics/processed_rows'] == 6
  [file] = (tmp_path / 'decode_out' / 'few').iterdir()
  np.testing.assert_allclose(
    [example['value']['y'] for example in _read_lines(file)],
    lines.rows(0, count=6).x @ w + b,
    rtol=1e-4,
  )


def _read_lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]
