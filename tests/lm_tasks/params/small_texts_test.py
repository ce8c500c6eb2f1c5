"""Short runs of the examples of classification and of translation."""

import json

import pytest

from lm_tasks import number_words
from lm_tasks import python_lines as lines_lib
from lm_tasks.params import number_words as translation
from lm_tasks.params import python_lines
from pax_compat import inference
from pax_compat.experiments import class_attributes, resolved
from pax_compat.trainer import run

_SMALL = (
  *('NUM_LAYERS=1', 'NUM_HEADS=2', 'MODEL_DIMS=8', 'HIDDEN_DIMS=8'),
  *('BATCH_SIZE=4', 'NUM_TRAIN_STEPS=2', 'EVAL_INTERVAL_STEPS=2'),
  *('SUMMARY_INTERVAL_STEPS=1', 'WARMUP_STEPS=1'),
)


def _trained(cls, folder, *settings):
  experiment = class_attributes.changed(cls(), [*_SMALL, *settings])
  experiment = resolved.resolve(experiment, name='test')
  run.train(experiment, job_log_dir=folder)
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  metrics = {(r['split'], r['name'], r['step']): r['value'] for r in rows}
  return experiment, metrics


@pytest.mark.slow
def test_lines_are_classified(tmp_path, monkeypatch):
  monkeypatch.setattr(lines_lib, '_MODULES', ('heapq',))
  lines_lib.balanced_lines.cache_clear()
  folder = tmp_path / 'run'
  experiment, metrics = _trained(python_lines.PythonLines, folder)
  lines_lib.balanced_lines.cache_clear()
  assert ('train', 'loss', 2) in metrics
  assert 0 <= metrics['eval_test', 'accuracy', 2] <= 1
  model = inference.load(folder, experiment=experiment)
  batch = next(model.batches('test'))
  want = model.predict(batch).softmax_output.logits
  assert want.shape == (4, 2)
  # Padding does not count.
  batch.ids = batch.ids * (batch.ids.cumsum(1) < 1000)
  short = model.predict(batch).softmax_output.logits
  batch.ids = batch.ids[:, :32]
  again = model.predict(batch).softmax_output.logits
  assert abs(short - again).max() < 1e-5 < abs(short - want).max()


@pytest.mark.slow
def test_numbers_are_translated(tmp_path, monkeypatch):
  monkeypatch.setattr(number_words.NumberWordsInput, 'num_test', 6)
  _, metrics = _trained(translation.NumberWords, tmp_path, 'BEAM_SIZE=2')
  assert ('eval_test', 'loss', 2) in metrics
  assert 0 <= metrics['decode_test', 'decoder/exact_match', 2] <= 1
