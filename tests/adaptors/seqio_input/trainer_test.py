"""Metrics of a SeqIO task through the trainer's evaluation and decoding."""

import json

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.pax_names.own import trainer_lib
from adaptors.seqio_input import eval_configs, pax_methods
from pax_compat import decoder_hparams, py_utils
from pax_compat.tasks import train_states
from pax_compat.trainer.evaluating import decoding, evaluation
from tests.adaptors.seqio_input import metric_tasks as tasks
from tests.adaptors.seqio_input import tiny_tasks
from tests.pax_compat.trainer import tiny

COUNT = 7
BATCH = 4
LENGTHS = {'inputs': 14, 'targets': 20}


def _data(metric_type, *, name='trained', broken=(tasks.broken,), **fields):
  tasks.add(
    name, count=COUNT, metric_fns=[*broken, tasks.edits, tasks.mean_score]
  )
  (config,) = eval_configs.get_eval_hparams_for_seqio(
    name, BATCH, LENGTHS, 1, metric_type
  )
  return config.Instantiate(**fields)


@pytest.fixture(name='made', scope='module')
def _made():
  """Returns the program of a language model of bytes."""
  task = tiny.task()
  vocabulary = lingvo_runtime.seqio().ByteVocabulary()
  task.model.lm_tpl.vocab_size = vocabulary.vocab_size
  task.model.decoder_tpl = decoder_hparams.GreedyDecoderHParams(
    seqlen=30, max_decode_steps=12, eos_id=vocabulary.eos_id
  )
  return tiny.make_program(task)


def _targets():
  return [
    tasks.postprocess(
      tasks.answer(i),
      {'inputs_pretokenized': f'question {i}:'.encode()},
      is_target=True,
    )
    for i in range(COUNT)
  ]


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_scores_are_those_of_the_loss(made, tmp_path):
  data = _data(eval_configs.MetricType.SCORE, log_preprocessed_targets=True)
  state = made.init_state(tiny.batch())
  found = evaluation.evaluate(
    data,
    task_program=made,
    mdl_vars=state.mdl_vars,
    examples_path=tmp_path / 'eval_out_3_shard_0.jsonl',
  )
  data.close()
  vocabulary = lingvo_runtime.seqio().ByteVocabulary()
  tokens = sum(
    len(vocabulary.encode(tasks.answer(i))) + 1 for i in range(COUNT)
  )
  np.testing.assert_allclose(
    -found['scoring_eval/mean_score'] * COUNT,
    found['log_pplx'] * tokens,
    rtol=1e-5,
  )
  assert found['scoring_eval/num_failed_metrics'] == 0.0
  lines = _lines(tmp_path / 'eval_out_3_metrics.jsonl')
  assert [line['number'] for line in lines] == list(range(COUNT))
  np.testing.assert_allclose(
    np.mean([line['scores'] for line in lines]),
    found['scoring_eval/mean_score'],
    rtol=1e-6,
  )


def test_predictions_are_those_that_are_written(made, tmp_path, log):
  data = _data(eval_configs.MetricType.PREDICT, log_preprocessed_targets=True)
  state = made.init_state(tiny.batch())
  path = tmp_path / 'decode_out_3_shard_0.jsonl'
  found = decoding.decode(
    data, task_program=made, mdl_vars=state.mdl_vars, path=path
  )
  data.close()
  values = [line['value'] for line in _lines(path)]
  assert len(values) == COUNT
  written = {tasks.number_in(x['prefix']): x['decoded_substr'] for x in values}
  predictions = [tasks.postprocess(written[i]) for i in range(COUNT)]
  want = tasks.edits(_targets(), predictions)
  assert {k: found[f'decoder/{k}'] for k in want} == {
    k: float(v.value) for k, v in want.items()
  }
  assert found['decoder/broken/failed'] == 1.0
  assert found['decoder/num_failed_metrics'] == 1.0
  assert "metric failed: broken, of the dataset 'trained'" in log()
  for number, line in enumerate(
    _lines(tmp_path / 'decode_out_3_metrics.jsonl')
  ):
    raw = line.pop('seqio_preprocessed_targets')
    assert raw['targets_pretokenized'] == tasks.answer(number)
    assert line == {
      'number': number,
      'decoded_substr': written[number],
      'seqio_postprocessed_predictions': predictions[number],
      'seqio_postprocessed_targets': list(_targets()[number]),
    }
  assert number == COUNT - 1


def test_only_what_is_asked_for_is_written(made, tmp_path):
  data = _data(eval_configs.MetricType.PREDICT)
  path = tmp_path / 'decode_out_3_shard_0.jsonl'
  state = made.init_state(tiny.batch())
  decoding.decode(data, task_program=made, mdl_vars=state.mdl_vars, path=path)
  data.close()
  assert [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_loops_of_ones_own_have_the_same_metrics(made, tmp_path):
  variables = made.init_state(tiny.batch()).mdl_vars
  states = train_states.TrainState(np.int32(0), variables, [])
  key, model = jax.random.key(0), made.task.model
  scored, predicted = (
    _data(kind, name='looped_model', broken=())
    for kind in (eval_configs.MetricType.SCORE, eval_configs.MetricType.PREDICT)
  )
  scores = evaluation.evaluate(scored, task_program=made, mdl_vars=variables)
  texts = decoding.decode(
    predicted, task_program=made, mdl_vars=variables, path=tmp_path / 'out'
  )
  outputs, pairs = [], []
  for data in (scored, predicted):
    data.reset()
  for batch in tiny_tasks.read(scored):
    _, found = trainer_lib.eval_step_single_learner(
      made.task, states, key, batch
    )
    rows = py_utils.tree_unstack(found.per_example_out, 0)
    outputs += [(py_utils.get_enumeration_id(row), row) for row in rows]
  for batch in tiny_tasks.read(predicted):
    (_, decoded, _), _ = trainer_lib.decode_step(
      model, states, key, None, batch
    )
    _, found, _ = model.process_decode_out(predicted, decoded)
    pairs += pax_methods.maybe_update_decode_output_keys(found, decoded)

  [of_scores] = scored.compute_metrics(outputs, score_metrics=True)
  [of_texts] = predicted.compute_metrics(pairs)

  for name, value in of_scores.items():
    np.testing.assert_allclose(value, scores[f'scoring_eval/{name}'], rtol=1e-5)
  assert {f'decoder/{k}': v.value for k, v in of_texts.items()} == {
    f'decoder/{k}': texts[f'decoder/{k}'] for k in ('edits', 'examples')
  }
