"""Tests of the byte-level language models."""

import json

import pytest

from tests.pax_compat import launching

_TRAINS = """
  import pathlib, sys
  from lm_tasks.params import text_bytes
  from pax_compat.experiments import resolved
  from pax_compat.trainer import run

  folder = pathlib.Path(sys.argv[1])
  class Tiny(text_bytes.TextBytes):
    FILES = {'train': str(folder / 'text'), 'dev': str(folder / 'text')}
    PERCORE_BATCH_SIZE, MAX_SEQ_LEN, MODEL_DIMS, HIDDEN_DIMS = 4, 16, 8, 16
    NUM_LAYERS, NUM_HEADS, SUMMARY_INTERVAL_STEPS = 1, 2, 1
    NUM_TRAIN_STEPS, EVAL_INTERVAL_STEPS, WARMUP_STEPS = 4, 4, 1

  class TinyGrain(Tiny, text_bytes.TextBytesGrain):
    pass

  for cls in (Tiny, TinyGrain):
    experiment = resolved.resolve(cls(), name=cls.__name__)
    run.train(experiment, job_log_dir=folder / cls.__name__)
  print(sorted({'tensorflow', 'lingvo', 'grain'} & set(sys.modules)))
"""


def test_they_train_alike_without_tensorflow(tmp_path):
  pytest.importorskip('grain')
  text = ''.join(f'line {i} of a text\n' for i in range(20))
  (tmp_path / 'text').write_text(text)
  done = launching.run_script(
    _TRAINS,
    tmp_path,
    # Both compile the same programs.
    JAX_COMPILATION_CACHE_DIR=str(tmp_path / 'compiled'),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0',
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[-1] == "['grain']"
  losses = [_losses(tmp_path / name) for name in ('Tiny', 'TinyGrain')]
  assert losses[0] == losses[1]
  assert len([key for key in losses[0] if key[0] == 'train']) == 4
  assert ('eval_dev', 4) in losses[0]


def _losses(folder) -> dict[tuple[str, int], float]:
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return {
    (record['split'], record['step']): record['value']
    for record in map(json.loads, lines)
    if record['name'] == 'loss'
  }
