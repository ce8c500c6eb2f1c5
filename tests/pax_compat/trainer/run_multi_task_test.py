"""Whole runs of several tasks."""

import json

from pax_compat.experiments import resolved
from pax_compat.trainer import run
from tests.pax_compat import trainer_runs, two_tasks


def _train(folder, steps):
  experiment = type('TwoTasks', (two_tasks.TwoTasks,), {'STEPS': steps})()
  printed = []
  experiment = resolved.resolve(experiment, name='two')
  run.train(experiment, job_log_dir=str(folder), print_line=printed.append)
  return printed


def test_a_run_that_continues_is_like_one_without_a_break(tmp_path):
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  printed = _train(whole, 8)
  assert printed[0] == 'starts with 7 new parameters'
  assert 'compiled for 2 shape(s)' in printed[-1]
  _train(parts, 3)
  assert _train(parts, 8)[0] == 'continues from the checkpoint of step 3'
  trainer_runs.assert_same_state(whole, parts, 8)
  losses = trainer_runs.losses(whole)
  assert losses == trainer_runs.losses(parts) and len(losses) == 8
  metrics = trainer_runs.metrics(whole)
  # Each step has the metrics of its task.
  tasks = [
    {
      task
      for task in two_tasks.DIMS
      if (step, 'train', f'{task}/loss') in metrics
    }
    for step in range(1, 9)
  ]
  assert all(len(found) == 1 for found in tasks)
  assert set.union(*tasks) == set(two_tasks.DIMS)
  for step, [task] in enumerate(tasks, 1):
    assert metrics[step, 'train', f'{task}/loss'] == losses[step - 1]
    assert (step, 'train', f'{task}/learning/lr') in metrics
  for task in two_tasks.DIMS:
    split = f'eval_dev_{task}'
    assert metrics[8, split, 'loss'] == metrics[8, split, f'{task}/loss']
  path = whole / 'decode_out/dev_short/decode_out_8_shard_0.jsonl'
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert len(lines) == 8 and all(len(line['value']) == 2 for line in lines)
  path = whole / 'eval_out/dev_long/eval_out_8_shard_0.jsonl'
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  # Of two batches, without what only fills them.
  assert [line['row'] for line in lines] == [0, 1, 2] * 2
  assert all('long/square' in line for line in lines)
