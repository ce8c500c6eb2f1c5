"""Tests of metrics on disk; TensorBoard itself reads the event files."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import metric_writers

_ROOT = pathlib.Path(__file__).parents[2]

# TensorBoard imports TensorFlow where it finds it, and does without elsewhere.
# It reads in a process of its own, where there is none, because that is fast.
_READ_EVENTS = """
  import json, sys
  sys.modules['tensorflow'] = None
  from tensorboard.backend.event_processing import event_accumulator
  events = event_accumulator.EventAccumulator(sys.argv[1])
  events.Reload()
  tags = events.Tags()
  print(json.dumps({
    'scalars': {
      t: [[e.step, e.value] for e in events.Scalars(t)]
      for t in tags['scalars']},
    'texts': {
      t: [[e.step, e.tensor_proto.string_val[0].decode()]
          for e in events.Tensors(t)]
      for t in tags['tensors']},
  }))
"""


def _python(script, *args):
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(script), *map(str, args)],
    env=os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=300,
  )


def _events(folder):
  pytest.importorskip('tensorboard')
  done = _python(_READ_EVENTS, folder)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


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
  assert _lines(tmp_path) == [
    {'step': 3, 'split': 'train', 'name': 'loss', 'value': 2.5},
    {'step': 3, 'split': 'train', 'name': 'lr', 'value': 0.5},
  ]
  writer.write_scalars(4, 'train', {'loss': 2})
  writer.write_scalars(4, 'eval_test', {'log_pplx': 1.25})
  writer.write_text(0, 'train', 'config', 'a = 1\nb = "ö"')
  writer.close()
  assert _events(tmp_path / 'summaries' / 'train') == {
    'scalars': {'loss': [[3, 2.5], [4, 2.0]], 'lr': [[3, 0.5]]},
    'texts': {'config/text_summary': [[0, 'a = 1\nb = "ö"']]},
  }
  assert _events(tmp_path / 'summaries' / 'eval_test')['scalars'] == {
    'log_pplx': [[4, 1.25]]
  }


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
  events = _events(tmp_path / 'summaries' / 'train')
  steps = [step for step, _ in events['scalars']['loss']]
  assert steps == [10, 20, 30, 35]


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
  said = []
  monkeypatch.setattr(
    metric_writers.logging, 'info', lambda text, *args: said.append(text % args)
  )
  _write(tmp_path, [], resume_step=10)
  assert len(said) == 1
  assert 'dropped 2 lines of steps after 10' in said[0]


def test_only_the_first_process_writes(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  writer = metric_writers.MetricWriter(tmp_path)
  writer.write_scalars(1, 'train', {'loss': 1.0})
  writer.write_text(1, 'train', 'x', 'y')
  writer.close()
  assert os.listdir(tmp_path) == []


def test_a_killed_run_leaves_its_lines(tmp_path):
  done = _python(
    """
    import os, signal, sys
    from pax_compat import metric_writers
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
