"""Tests of metrics on disk; TensorBoard itself reads the event files."""

import json
import os
import resource
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clu import values

from pax_compat import errors
from pax_compat.metrics import histograms, json_lines, metric_writers
from tests.pax_compat import event_files
from tests.pax_compat.launching import run_function, run_script


def _lines(folder):
  text = (folder / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _steps(folder):
  return [line['step'] for line in _lines(folder)]


def _write(folder, steps, **kwargs):
  writer = metric_writers.MetricWriter(folder, **kwargs)
  for step in steps:
    writer.write_scalars(step, 'train', {'loss': step / 4})
  writer.close()


def test_jsonl_and_tensorboard(tmp_path):
  writer = metric_writers.MetricWriter(tmp_path)
  writer.write_scalars(
    np.int64(3), 'train', {'loss': jnp.float32(2.5), 'lr': np.float32(0.5)}
  )
  # Written, although nothing was closed.
  lines = _lines(tmp_path)
  seconds = [line.pop('time') for line in lines]
  assert lines == [
    {'step': 3, 'split': 'train', 'name': 'loss', 'value': 2.5},
    {'step': 3, 'split': 'train', 'name': 'lr', 'value': 0.5},
  ]
  assert seconds == pytest.approx([time.time()] * 2, abs=60)
  writer.write_scalars(4, 'train', {'loss': 2})
  writer.write_scalars(4, 'eval_test', {'log_pplx': 1.25})
  writer.write_text(0, 'train', 'config', 'a = 1\nb = "ö"')
  writer.close()
  train = event_files.read(tmp_path / 'summaries' / 'train')
  assert train['scalars'] == {'loss': [[3, 2.5], [4, 2.0]], 'lr': [[3, 0.5]]}
  assert train['texts'] == {'config/text_summary': [[0, 'a = 1\nb = "ö"']]}
  assert event_files.read(tmp_path / 'summaries' / 'eval_test')['scalars'] == {
    'log_pplx': [[4, 1.25]]
  }


def test_the_events_of_a_split_begin_with_a_text(tmp_path):
  writer = metric_writers.MetricWriter(tmp_path)
  writer.begin_with_text(0, 'train', 'config', 'a = 1')
  writer.begin_with_text(0, 'eval_test', 'config', 'b = 2')
  assert not (tmp_path / 'summaries').exists()
  writer.write_scalars(4, 'train', {'loss': 2})
  train = event_files.read(tmp_path / 'summaries' / 'train')
  assert train['texts'] == {'config/text_summary': [[0, 'a = 1']]}
  assert train['scalars'] == {'loss': [[4, 2.0]]}
  writer.close()
  assert event_files.read(tmp_path / 'summaries' / 'train') == train
  assert event_files.read(tmp_path / 'summaries' / 'eval_test')['texts'] == {
    'config/text_summary': [[0, 'b = 2']]
  }


def test_values_of_all_kinds(tmp_path):
  writer = metric_writers.MetricWriter(tmp_path)
  x = jnp.array([-1.0, 0.0, 0.0, 3.0])
  image = np.zeros([2, 4, 5, 3], np.uint8)
  writer.write_values(
    7,
    'train',
    {
      'plain': 0.25,
      'clu': values.Scalar(jnp.float32(4)),
      'words': values.Text('so'),
      'spread': histograms.histogram(x),
      'raw': values.Histogram(np.asarray(x), num_buckets=3),
      'one': values.Image(image[0]),
      'two': values.Image(image),
    },
  )
  writer.close()
  assert [(x['name'], x['value']) for x in _lines(tmp_path)] == [
    ('plain', 0.25),
    ('clu', 4.0),
  ]
  found = event_files.read(tmp_path / 'summaries' / 'train')
  assert found['scalars'] == {'plain': [[7, 0.25]], 'clu': [[7, 4.0]]}
  assert found['texts'] == {'words/text_summary': [[7, 'so']]}
  assert found['images'] == {
    name: [[7, 5, 4, 8]] for name in ('one', 'two/0', 'two/1')
  }
  assert set(found['histograms']) == {'spread', 'raw'}
  for [[step, low, high, count, total, squares, limits, counts]] in found[
    'histograms'
  ].values():
    assert (step, low, high, count, total, squares) == (7, -1, 3, 4, 2, 10)
    at = [x for x, n in zip(limits, counts, strict=True) if n]
    # The upper limits of the buckets of -1, 0 and 3.
    np.testing.assert_allclose(at, [-1, 0, 3], atol=4 / 64)
    assert [n for n in counts if n] == [1, 2, 1]


def test_a_value_of_no_known_kind(tmp_path):
  writer = metric_writers.MetricWriter(tmp_path)
  sound = values.Audio(np.zeros([1, 8, 1]), sample_rate=8)
  with pytest.raises(errors.UserError, match="train: .* 'sound' is a Audio"):
    writer.write_values(1, 'train', {'sound': sound})
  writer.close()


def test_numbers_that_json_has_not(tmp_path):
  writer = metric_writers.MetricWriter(tmp_path)
  values = {'a': jnp.nan, 'b': np.inf, 'c': -float('inf')}
  writer.write_scalars(1, 'train', values)
  writer.close()

  def refuse(name):
    raise AssertionError(f'{name} is not JSON')

  text = (tmp_path / 'metrics.jsonl').read_text()
  for line, note in zip(text.splitlines(), ('nan', 'inf', '-inf'), strict=True):
    read = json.loads(line, parse_constant=refuse)
    assert read['value'] is None
    assert read['note'] == note


def test_a_resumed_run_replaces_later_steps(tmp_path):
  _write(tmp_path, [10, 20, 30, 40], resume_step=0)
  _write(tmp_path, [30, 35], resume_step=20)
  assert _steps(tmp_path) == [10, 20, 30, 35]
  events = event_files.read(tmp_path / 'summaries' / 'train')
  steps = [step for step, _ in events['scalars']['loss']]
  assert steps == [10, 20, 30, 35]


def test_what_is_measured_again_is_replaced_at_that_step_too(tmp_path):
  splits = ('train', 'eval_dev', 'decode_dev')
  for again in (False, True):
    writer = metric_writers.MetricWriter(
      tmp_path, resume_step=20 if again else 0, measures_again=again
    )
    for split in splits[again:]:
      writer.write_scalars(20, split, {'loss': again})
    writer.close()
  found = {(line['split'], line['value']) for line in _lines(tmp_path)}
  assert found == {('train', 0.0), ('eval_dev', 1.0), ('decode_dev', 1.0)}
  for split, value in found:
    events = event_files.read(tmp_path / 'summaries' / split)
    assert events['scalars'] == {'loss': [[20, value]]}


def test_without_resume_step_all_is_kept(tmp_path):
  _write(tmp_path, [10, 20])
  _write(tmp_path, [5])
  assert _steps(tmp_path) == [10, 20, 5]


@pytest.mark.parametrize('resume_step', [None, 20])
@pytest.mark.parametrize('torn', ['{"step": 20, "spl', '{"step": 1}', '\0\0'])
def test_a_torn_last_line_is_dropped(tmp_path, torn, resume_step):
  _write(tmp_path, [10, 20])
  with open(tmp_path / 'metrics.jsonl', 'a') as f:
    f.write(torn)
  _write(tmp_path, [30], resume_step=resume_step)
  assert _steps(tmp_path) == [10, 20, 30]


def test_what_is_dropped_is_logged(tmp_path, monkeypatch):
  _write(tmp_path, [10, 20, 30])
  messages = []
  monkeypatch.setattr(
    json_lines.logging, 'info', lambda text, *args: messages.append(text % args)
  )
  _write(tmp_path, [], resume_step=10)
  assert len(messages) == 1
  assert 'dropped 2 lines of steps that are run again' in messages[0]


def test_only_the_first_process_writes(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  writer = metric_writers.MetricWriter(tmp_path)
  writer.write_scalars(1, 'train', {'loss': 1.0})
  writer.write_text(1, 'train', 'x', 'y')
  writer.close()
  assert os.listdir(tmp_path) == []


def test_a_killed_run_leaves_its_lines(tmp_path):
  done = run_script(
    """
    import os, signal, sys
    from pax_compat.metrics import metric_writers
    writer = metric_writers.MetricWriter(sys.argv[1])
    for step in range(5):
      writer.write_scalars(step, 'train', {'loss': step})
    assert 'tensorflow' not in sys.modules
    os.kill(os.getpid(), signal.SIGKILL)
    """,
    tmp_path,
  )
  assert done.returncode == -signal.SIGKILL, done.stderr
  assert _steps(tmp_path) == [0, 1, 2, 3, 4]
  _write(tmp_path, [3], resume_step=2)
  assert _steps(tmp_path) == [0, 1, 2, 3]


def write_until_full(folder):
  """Writes texts of 5 kB where no file may become larger than 20 kB."""
  _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
  writer = metric_writers.MetricWriter(folder)
  threads = threading.active_count()
  try:
    for step in range(100):
      writer.write_text(step, 'train', 'samples', 'x' * 5000)
  except OSError as e:
    print(f'step {step}: {e.strerror} {e.filename}')
  writer.close()
  assert threading.active_count() == threads


@pytest.mark.slow
def test_who_writes_to_a_full_disk_gets_the_error(tmp_path):
  done = run_function(write_until_full, tmp_path)
  assert done.returncode == 0, done.stderr
  [file] = (tmp_path / 'summaries' / 'train').iterdir()
  assert done.stdout == f'step 3: File too large {file}\n'
  # TensorBoard reads what was written before.
  texts = event_files.read(file.parent)['texts']['samples/text_summary']
  assert [step for step, _ in texts] == [0, 1, 2]
