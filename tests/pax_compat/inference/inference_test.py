"""Tests of using a trained model from Python."""

import json
import pathlib
import re
import shlex

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from pax_compat import errors, inference
from pax_compat.inference import exporting
from pax_compat.tools import generate
from tests.pax_compat import trainer_runs

_NATIVE = 'tasks.lm.params.text_bytes.TextBytes'
_SMALL = (
  '--attr=NUM_LAYERS=1',
  '--attr=MODEL_DIMS=16',
  '--attr=NUM_HEADS=2',
  '--attr=HIDDEN_DIMS=32',
  '--attr=PERCORE_BATCH_SIZE=64',
  '--attr=MAX_SEQ_LEN=24',
  '--set=task.train.num_train_steps=2',
  '--set=task.train.eval_interval_steps=0',
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The folder of a run of a native language model."""
  path = tmp_path_factory.mktemp('run') / 'run'
  trainer_runs.train(path, *_SMALL, exp=_NATIVE)
  return path


@pytest.fixture(scope='module')
def model(folder):
  return inference.load(folder)


@pytest.fixture(scope='module')
def batch(model):
  return next(model.batches('dev'))


def test_the_command_line_is_recorded(folder, model):
  recorded = json.loads((folder / 'options.json').read_text())
  assert recorded['attributes'] == [
    one.removeprefix('--attr=') for one in _SMALL if one.startswith('--attr')
  ]
  assert model.step == 2
  assert model.config.model.lm_tpl.model_dims == 16
  stored = trainer_runs.state(folder, 2)
  path = 'mdl_vars.params.lm.final_ln.scale'
  found = model.mdl_vars['params']['lm']['final_ln']['scale']
  np.testing.assert_array_equal(found, stored[path])


def test_numbers_of_a_batch(folder, model, batch):
  evaluated = trainer_runs.metrics(folder)
  total = weight = 0.0
  for one in model.batches('dev'):
    found = model.metrics(one)
    assert found['loss'] == model.loss(one)
    total += found['loss'] * found['num_predictions']
    weight += found['num_predictions']
  assert total / weight == pytest.approx(
    evaluated[2, 'eval_dev', 'loss'], rel=1e-5
  )
  logits = model.predict(batch).logits
  assert logits.shape == (*batch.ids.shape, 256)
  logprobs = jax.nn.log_softmax(logits)
  chosen = np.take_along_axis(
    np.asarray(logprobs), np.asarray(batch.labels)[..., None], axis=-1
  )[..., 0]
  weights = batch.weights
  assert model.metrics(batch)['log_pplx'] == pytest.approx(
    -np.sum(chosen * weights) / np.sum(weights), rel=1e-5
  )


def test_an_experiment_that_is_passed(folder, model):
  passed = inference.load(folder, experiment=model.experiment)
  assert passed.experiment is model.experiment
  assert jax.tree.all(
    jax.tree.map(np.array_equal, passed.mdl_vars, model.mdl_vars)
  )
  with pytest.raises(errors.UserError, match='both settings and an experiment'):
    inference.load(folder, experiment=model.experiment, settings=['task.x=1'])


def test_generated_text_is_the_most_likely(model):
  [text, other] = model.generate(['import os', 'x'], max_decode_steps=3)
  prompt = list(b'\0import os')
  ids = list(prompt)
  for _ in range(3):
    row = np.zeros([1, 24], np.int32)
    row[0, : len(ids)] = ids
    padding = (np.arange(24) >= len(ids)).astype(np.float32)[None]
    predicted = model.predict(
      dict(
        ids=row,
        labels=row,
        paddings=padding,
        weights=1 - padding,
        segment_ids=(1 - padding).astype(np.int32),
        segment_pos=np.arange(24, dtype=np.int32)[None],
      )
    )
    ids.append(int(np.argmax(predicted.logits[0, len(ids) - 1])))
  wanted = bytes(ids[len(prompt) :]).decode('utf-8', errors='replace')
  assert text == wanted
  assert other
  with pytest.raises(errors.UserError, match=r"such as \['x'\]"):
    model.generate('x')


def test_sampled_texts(model):
  prompts = ['import os', 'x']
  steps = dict(max_decode_steps=3)
  greedy = model.generate(prompts, **steps)
  assert model.generate(prompts, temperature=0.0, **steps) == greedy
  assert model.generate(prompts, top_k=1, top_p=0.5, **steps) == greedy
  many = model.generate(prompts, num_samples=4, seed=1, **steps)
  assert [len(set(texts)) > 1 for texts in many] == [True, True]
  # The same text alone, and with another seed.
  assert model.generate(['x'], num_samples=4, seed=1, **steps) == many[1:]
  assert model.generate(['x'], num_samples=4, seed=2, **steps) != many[1:]


def _joined(pieces, samples):
  """Returns the texts of all samples of two prompts, one after another."""
  return [
    ''.join(p.text for p in pieces if (p.prompt, p.sample) == (row, sample))
    for row in range(2)
    for sample in range(samples)
  ]


def test_pieces_of_texts(model):
  prompts, pieces = ['import os', 'x'], []
  found = model.generate(
    prompts, num_samples=2, max_decode_steps=4, seed=1, stream=pieces.append
  )
  assert sum(found, []) == _joined(pieces, 2)
  assert sum(piece.done for piece in pieces) == 4
  wanted = model.generate(prompts, num_samples=2, max_decode_steps=4, seed=1)
  assert [sorted(row) for row in found] == [sorted(row) for row in wanted]
  with pytest.raises(errors.UserError, match='beam_size and stream are given'):
    model.generate(['x'], beam_size=2, stream=pieces.append)


@pytest.mark.slow
def test_texts_of_a_server_are_those_of_a_batch(model):
  prompts, pieces = ['import os', 'x', 'def f'], []
  server = model.server(
    num_cache_slots=2,
    max_prefix_len=32,
    max_decode_steps=4,
    steps_at_once=2,
    temperature=1.0,
    seed=1,
  )
  tickets = [server.submit(text) for text in prompts[:2]]
  found = server.step()
  assert not found and server.num_active == 2
  # It waits for a slot.
  tickets.append(server.submit(prompts[2], stream=pieces.append))
  found = server.run()
  want = model.generate(prompts, temperature=1.0, seed=1, max_decode_steps=4)
  assert [found[ticket] for ticket in tickets] == want
  # The first token is that of the prefix.
  assert [len(piece.ids) for piece in pieces] == [2, 1, 1]
  assert ''.join(piece.text for piece in pieces) == want[2]
  assert pieces[-1].done and server.num_active == 0
  for text, fields, message in (
    ('x' * 40, {}, 'the prompt has 41 tokens; expected at most max_prefix_len'),
    ('x', {'max_decode_steps': 5}, 'max_decode_steps is 5; expected 1 to 4'),
    ('x', {'temperature': -1}, 'temperature is -1; expected 0 or more'),
  ):
    with pytest.raises(errors.UserError, match=message):
      server.submit(text, **fields)


def test_what_a_server_does_not_do(model):
  with pytest.raises(errors.UserError, match='num_cache_slots is 0; exp'):
    model.server(num_cache_slots=0)
  with pytest.raises(errors.UserError, match='num_samples is 2; expected 1'):
    model.server(num_samples=2)
  with pytest.raises(errors.UserError, match='draft_steps is given'):
    model.server(draft_steps=2)


@pytest.mark.slow
def test_texts_with_a_draft_model(folder, model):
  prompts, pieces = ['import os', 'x'], []
  other, steps = inference.load(folder), dict(max_decode_steps=6)
  found = model.generate(
    prompts, draft=other, draft_steps=2, stream=pieces.append, **steps
  )
  assert found == model.generate(prompts, **steps) == _joined(pieces, 1)
  assert max(len(piece.ids) for piece in pieces) == 3
  many = model.generate(prompts, draft=other, num_samples=3, seed=1, **steps)
  assert [len(texts) for texts in many] == [3, 3]


def test_what_a_draft_model_does_not_do(model):
  with pytest.raises(errors.UserError, match='beam_size and draft are given'):
    model.generate(['x'], draft=model, beam_size=2)
  with pytest.raises(
    errors.UserError, match='the draft model is missing; expect'
  ):
    model.generate(['x'], draft_steps=2)
  with pytest.raises(errors.UserError, match='did you mean: .*draft_steps'):
    model.generate(['x'], draft_step=2)


def test_the_commands_of_the_page_on_decoding(folder, capsys):
  page = pathlib.Path('docs/decoding.md').read_text('utf-8')
  [block] = re.findall(r'```bash\n(.*?)```', page, re.DOTALL)
  printed = []
  for line in block.splitlines():
    python, option, module, *arguments = shlex.split(line)
    assert (python, option) == ('python', '-m')
    assert module == 'pax_compat.tools.generate'
    arguments = [
      re.sub('runs/(first|small)', str(folder), one) for one in arguments
    ]
    with flagsaver.flagsaver():
      rest = flags.FLAGS(['generate', *arguments, '--max_decode_steps=2'])
      assert generate.main(rest) == 0
    printed.append(capsys.readouterr().out.count('The '))
  assert printed == [1, 4, 4, 1, 1]


def test_a_streamed_text_is_one_text(folder):
  with flagsaver.flagsaver():
    given = [f'--job_log_dir={folder}', '--prompt=a', '--prompt=b', '--stream']
    rest = flags.FLAGS(['generate', *given])
    with pytest.raises(errors.UserError, match='expected one --prompt'):
      generate.main(rest)


def test_texts_of_a_beam_search(model):
  found = model.generate(['import os'], beam_size=2, max_decode_steps=3)
  assert len(found) == 1 and len(found[0]) == 2
  with pytest.raises(errors.UserError, match='beam_size and top_k are given'):
    model.generate(['x'], beam_size=2, top_k=3)
  with pytest.raises(errors.UserError, match='beam_size and seed are given'):
    model.generate(['x'], beam_size=2, seed=3)
  with pytest.raises(errors.UserError, match='did you mean: .*top_k'):
    model.generate(['x'], topk=3)


def test_the_models_own_decoder(folder, model):
  other = inference.load(folder, settings=['task.model.decoder_tpl.seqlen=11'])
  ids = np.frombuffer(b'\0import os', np.uint8).astype(np.int32)[None]
  paddings = np.zeros(ids.shape, np.float32)
  batch = dict(ids=ids, labels=ids, paddings=paddings, weights=1 - paddings)
  found = other.decode(batch)
  [(key, value)] = found.pairs
  assert key == '\0import os'
  assert (
    value['decoded_substr']
    == model.generate(['import os'], max_decode_steps=1)[0]
  )
  assert found.outputs.output_ids.shape == (1, 1, 11)
  assert found.metrics['decoded_length'] == 11


def test_what_cannot_be_loaded(folder, tmp_path):
  with pytest.raises(errors.UserError, match='no checkpoint of step 7; the n'):
    inference.load(folder, 7)
  with pytest.raises(errors.UserError, match='has no experiment.json'):
    inference.load(tmp_path)
  with pytest.raises(errors.UserError, match='for 3 devices; there are 1'):
    inference.load(folder, mesh={'data': 3})


def test_an_exported_model_needs_nothing_of_its_experiment(
  model, batch, tmp_path
):
  model.export(tmp_path / 'exported')
  exported = exporting.open_folder(tmp_path / 'exported')
  assert exported.metadata['experiment'] == _NATIVE
  assert exported.inputs['ids'] == {'shape': ['b', 24], 'dtype': 'int32'}
  assert 'paddings' in exported.inputs
  assert 'labels' not in exported.inputs
  wanted = np.asarray(model.predict(batch).logits)
  for rows in (len(wanted), 1):
    part = {name: x[:rows] for name, x in batch.items()}
    found = exported.predict(part)['logits']
    np.testing.assert_allclose(found, wanted[:rows], atol=1e-5)
  with pytest.raises(errors.UserError, match="no field 'paddings'"):
    exported.predict(dict(ids=batch.ids))
  with pytest.raises(errors.UserError, match='has files'):
    model.export(tmp_path / 'exported')
  with pytest.raises(errors.UserError, match='no prediction .logit.; did you'):
    model.export(tmp_path / 'other', outputs=['logit'])
