"""Folders like those of runs, without training."""

import json
import pathlib
from collections.abc import Mapping

CONFIG = """task : pax_compat.tasks_lib.SingleTask
task.name = 'tiny'
task.train.num_train_steps = {steps}
task.model.dims = 8
"""
PARAMETERS = """path      shape   count  dtype     sharding
params/w  8x16    128    float32   ('data', 'mdl')
params/e  6x4     24     bfloat16  (('data', 'mdl'), None)
params/b  16      16     float32   replicated
params/s  scalar  1      int32     replicated
mesh data 2 x mdl 2
total 169
"""
LOG = """2026-11-23T23:56:01.000Z I run] starts with 169 new parameters
2026-11-23T23:56:02.000Z W disk.py:7] the disk is <slow>
2026-11-23T23:56:03.000Z W disk.py:7] the disk is <slow>
2026-11-23T23:56:04.000Z E run] ended by ValueError: no data
  at all
"""


def lines(values: Mapping[tuple[str, str], Mapping[int, float]]) -> str:
  """Returns metrics as JSON lines.

  Args:
    values: by split and name, then by step.
  """
  return ''.join(
    json.dumps(
      dict(step=step, split=split, name=name, value=value, time=1e9 + step)
    )
    + '\n'
    for (split, name), of_steps in values.items()
    for step, value in of_steps.items()
  )


def make(folder: pathlib.Path, *, steps: int = 4, offset: float = 0.0):
  """Makes the folder of a run that has files of all kinds.

  Args:
    folder: the folder.
    steps: number of steps.
    offset: of the losses.
  """
  every = range(1, steps + 1)
  values = {
    ('train', 'loss'): {s: offset + 4 / s for s in every},
    ('train', 'log_pplx'): {s: offset + 4 / s for s in every},
    ('train', 'accuracy'): {s: s / 10 for s in every},
    ('train', 'steps_per_second'): {s: 2.0 for s in every if s > 1},
    ('train', 'mfu'): {s: 0.4 for s in every if s > 1},
    ('train', 'time_use/training'): {s: s / 8 for s in every},
    ('train', 'time_use/saving'): {s: 0.001 for s in every},
    ('train', 'time_use/lost'): {s: 0.25 for s in every},
    ('train', 'learning/lr'): {s: 0.1 for s in every},
    ('eval_dev', 'loss'): {steps: offset + 2.5},
    ('eval_dev', 'log_pplx'): {steps: offset + 2.5},
    **{('train', f'vars/{i}'): {1: 1.0, steps: 2.0} for i in range(13)},
  }
  outputs = folder / 'decode_out' / 'few'
  outputs.mkdir(parents=True)
  example = {'key': 'a<b>', 'value': {'decoded': 'x' * 700, 'ids': [1, 2]}}
  for step in (2, 10):
    path = outputs / f'decode_out_{step}_shard_0.jsonl'
    path.write_text(json.dumps({**example, 'step': step}) + '\n')
  mark = {'name': 'lm.Tiny', 'version': '0.1.0', 'created': '2026-11-23'}
  for name, text in (
    ('metrics.jsonl', lines(values)),
    ('eval_metrics.jsonl', lines({('eval_test_dev', 'loss'): {steps: 2.5}})),
    ('config.txt', CONFIG.format(steps=steps)),
    ('parameters.txt', PARAMETERS),
    ('experiment.json', json.dumps(mark)),
    ('log.txt', LOG),
  ):
    (folder / name).write_text(text)
