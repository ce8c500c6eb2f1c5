"""Decoding against numpy over the rows with a weight."""

import contextlib
import json
import types

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers import models
from pax_compat.layers.embeddings import positional_embeddings
from pax_compat.trainer import profiling, run
from pax_compat.trainer.evaluating import batch_results, decoding
from tests.pax_compat.trainer import lines

END = 6  # rows, in batches of 4
ROWS = lines.rows(0, count=END)


@pytest.fixture(scope='module')
def made():
  return lines.make_program(lines.task())


def _decode(made, path, *, fields=None, **kwargs):
  data = lines.Rows.config(
    name='few', **dict(end=END, reset_for_eval=True) | (fields or {})
  ).Instantiate()
  found = decoding.decode(
    data,
    task_program=made,
    mdl_vars=made.init_state(lines.rows(0)).mdl_vars,
    path=path,
    **kwargs,
  )
  lines_read = map(json.loads, path.read_text().splitlines())
  return batch_results.numbers(found), list(lines_read)


def test_each_example_is_written(made, tmp_path):
  _, found = _decode(made, tmp_path / 'few' / 'x.jsonl')
  assert [x['key'] for x in found] == ['few0', 'few1', 'few2', 'few3'] + [
    'few0',
    'few1',
  ]
  want = ROWS.x @ np.full(lines.DIMS, 0.5)
  np.testing.assert_allclose([x['value']['y'] for x in found], want, rtol=1e-5)


def test_metrics_of_both_halves(made, tmp_path):
  found, _ = _decode(made, tmp_path / 'x.jsonl')
  assert found == {
    'decode_metrics/num_decoded': (4 + 2) / 2,
    'Metrics/decoded_rows': END,
    'process_decode_metrics/num_processed': (4 + 2) / 2,
    'Metrics/processed_rows': END,
    'num_decode_steps': 2,
  }


def test_summaries_of_layers_while_decoding(tmp_path):
  task = lines.task(model=dict(has_summaries=True))
  data = lines.Rows.config(name='few', end=END, reset_for_eval=True)
  made = lines.make_program(task)
  found = decoding.decode(
    data.Instantiate(),
    task_program=made,
    mdl_vars=made.init_state(lines.rows(0)).mdl_vars,
    path=tmp_path / 'x.jsonl',
  )
  x = lines.rows(0).x
  mean = (x[0, 0] + lines.rows(4).x[0, 0]) / 2
  np.testing.assert_allclose(found['first'], mean, rtol=1e-6)
  assert found['words'].value == 'said' and 'quiet' not in found
  # The examples are shown as they are written.
  written = (tmp_path / 'x.jsonl').read_text().splitlines()
  shown = [line.strip() for line in found['examples'].value.split('\n\n')]
  assert shown == written[:4] and len(written) == END
  # Large ones are of the first batch alone.
  np.testing.assert_allclose(found['picture'].value[0, :, :, 0], x, rtol=1e-6)
  assert found['all'].counts.sum() == x.size

  task.decode.apply_mutable_list = []
  mute = lines.make_program(task)
  outputs = mute.decode_step(
    mute.init_state(lines.rows(0)).mdl_vars, lines.rows(0)
  )
  assert not outputs.scalars and not outputs.non_scalar_summaries


@pytest.mark.parametrize(
  ('fields', 'steps'),
  [
    (dict(end=4), 1),
    (dict(end=8), 2),
    (dict(reset_for_eval=False, end=None, eval_loop_num_batches=3), 3),
  ],
)
def test_batches_are_counted(made, tmp_path, fields, steps):
  found, _ = _decode(made, tmp_path / 'x.jsonl', fields=fields)
  assert found['num_decode_steps'] == steps


def test_no_batch(made, tmp_path):
  with pytest.raises(errors.UserError, match="'few' has 0 batches"):
    _decode(made, tmp_path / 'x.jsonl', fields=dict(end=0))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('folds', [False, True])
def test_random_numbers_of_batches(tmp_path, folds):
  task = lines.task()
  task.decode.set(prng_key_fold_with_batch_index=folds, metrics_prefix='M/')
  _, found = _decode(lines.make_program(task), tmp_path / 'x.jsonl')
  drawn = [x['value']['drawn'] for x in found]
  assert len(set(drawn)) == (2 if folds else 1)
  task.decode.random_seed = 3
  numbers, found = _decode(lines.make_program(task), tmp_path / 'x.jsonl')
  assert found[0]['value']['drawn'] != drawn[0]
  assert {'M/decoded_rows', 'M/processed_rows'} <= set(numbers)


class Halves(lines.Line):
  """Returns invalid results."""

  on_devices: bool = True

  def decode(self, input_batch):
    decoded = super().decode(input_batch)
    return decoded[:2] if self.on_devices else decoded

  def process_decode_out(self, input_obj, decode_out):
    return []


@pytest.mark.parametrize(
  ('on_devices', 'message'),
  [
    (True, r'Halves\.decode returns tuple; expected a tuple of'),
    (False, r'Halves\.process_decode_out returns list; expected a tuple of'),
  ],
)
def test_a_model_that_returns_invalid_results(tmp_path, on_devices, message):
  task = lines.task()
  task.model = Halves.config(on_devices=on_devices)
  with pytest.raises(errors.UserError, match=message):
    _decode(lines.make_program(task), tmp_path / 'x.jsonl')


def _language_model_task(**decoder):
  """Returns a task whose network knows 8 positions and 16 tokens."""
  task = lines.task()
  task.model = models.LanguageModel.config(
    decoder_tpl=models.GreedyDecoderHParams.config(**decoder)
  )
  task.model.lm_tpl.set(vocab_size=16, model_dims=4)
  task.model.lm_tpl.position_emb_tpl = (
    positional_embeddings.TrainablePositionalEmbedding.config(max_seq_length=8)
  )
  task.model.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, hidden_dims=4, num_heads=1
  )
  task.train.decode_interval_steps = 100
  return task


@pytest.mark.parametrize(
  ('decoder', 'message'),
  [
    ({}, 'decoder_tpl: GreedyDecoderHParams: seqlen is 0; expected'),
    ({'seqlen': 8, 'eos_id': 16}, 'decoder_tpl: .*eos_id is 16; expected ids'),
    ({'seqlen': 9}, 'decoder_tpl.seqlen is 9; expected at most 8, max_seq_len'),
    ({'seqlen': 8}, None),
  ],
)
def test_a_run_that_will_decode_checks_its_decoder_first(decoder, message):
  task = _language_model_task(**decoder)
  experiment = types.SimpleNamespace(
    set_up=contextlib.nullcontext, task=task, decode_datasets=['some']
  )
  if message is None:
    run._task(experiment, {})
    return
  with pytest.raises(errors.UserError, match=message):
    run._task(experiment, {})
  experiment.decode_datasets = []
  run._task(experiment, {})


def test_a_profile_of_some_batches(made, tmp_path):
  profile = profiling.Profile(
    folder=tmp_path / 'p', first_step=2, num_steps=1, min_seconds=0.0
  )
  _decode(made, tmp_path / 'x.jsonl', profile=profile)
  assert list((tmp_path / 'p').rglob('*.xplane.pb'))
