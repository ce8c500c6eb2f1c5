"""Tests of bridged tasks: as in Lingvo, and with the trainer."""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from adaptors.bridge.model import BridgedModel
from adaptors.lingvo_parity.batches import nested
from adaptors.translate import registry
from pax_compat import base_layer, errors
from pax_compat.input_core import example_rows
from pax_compat.layers.models import language_model
from tests.adaptors.bridge import family_parity, small_task
from tests.adaptors.translate import parity, tiny_task
from tests.pax_compat import launching, trainer_runs

OWN = 'tests.adaptors.bridge.own_task'


def own_task(**train):
  """Returns Params of a user's custom task, with its input."""
  experiment = lingvo_runtime.module(OWN).Tiny()
  params = experiment.Task()
  params.input = experiment.Train()
  params.train.Set(**train)
  return params


def letters(seed, rows=4):
  """Returns a batch for it, with paddings."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(3, 7, [rows, 1])
  paddings = (np.arange(6) >= lengths).astype(np.float32)
  ids, labels = rng.integers(0, 76, [2, rows, 6]).astype(np.int32)
  return dict(ids=ids, labels=labels, paddings=paddings, weights=1 - paddings)


def test_a_users_task_trains_as_in_lingvo():
  """Its moving averages and its own counter, too; norms are clipped."""
  params = own_task(clip_gradient_norm_to_value=0.05, l2_regularizer_weight=0.1)
  params.train.smoothing = 0.25
  batches = [letters(seed) for seed in range(3)]
  theirs = family_parity.run_lingvo(params, batches)
  translated = bridge_task.bridge_task(params, 'own')
  assert {v.theta[0] for v in translated.variables if not v.is_trainable} == {
    'letters_seen',
    'norm.moving_mean',
    'norm.moving_variance',
  }
  bridged = family_parity.Bridged(translated, batches[0], jax.devices()[:1])
  state = bridged.state(theirs.variables[0])
  for step, batch in enumerate(batches):
    state, outputs = bridged.program.train_step(state, nested(batch))
    np.testing.assert_allclose(outputs['loss'], theirs.losses[step], rtol=1e-6)
    found = bridged.theta(*state.mdl_vars.values())
    for path, value in theirs.variables[step + 1].items():
      parity.assert_close(found[path], value, 2e-5, f'{path} after {step}')
  weights = sum(batch['weights'].sum() for batch in batches)
  assert found['letters_seen'] == weights
  first, last = theirs.variables[0], theirs.variables[-1]
  assert all(np.any(first[path] != last[path]) for path in first)


@pytest.mark.parametrize('do_eval', [False, True])
def test_gradients_and_metrics_of_a_task_that_has_a_translation(do_eval):
  """The bridge is compared with the translation."""
  params, batch = tiny_task.params(), tiny_task.batches()[0]
  states = []
  for translation in ('native', 'bridge'):
    translated = bridge_task.translate(params, 'tiny', translation)
    bridged = family_parity.Bridged(translated, batch, jax.devices()[:1])
    weights = {
      path: np.sin(np.arange(np.prod(shape, dtype=int))).reshape(shape)
      for path, shape in (
        ('emb.wm[0]', (7, 4)),
        ('first.w', (4, 4)),
        ('first.b', (4,)),
        ('second.w', (4, 2)),
        ('second.b', (2,)),
      )
    }
    mdl_vars = bridged.mdl_vars(weights)
    with base_layer.eval_mode(do_eval):
      states.append(bridged.loss_and_gradients(mdl_vars, batch)[:2])
    metrics = bridged.program.eval_step(mdl_vars, nested(batch)).weighted
    loss, twice = (float(metrics[name][0]) for name in ('loss', 'twice'))
    assert twice == pytest.approx(2 * loss)
  (loss, native), (same, found) = states
  np.testing.assert_allclose(loss, same, rtol=1e-6)
  parity.assert_gradients_close(found, native)


def test_padding_rows_have_no_weight():
  """An eval input adds them to the last batch."""
  batch = nested(letters(0, rows=3))
  padded = jax.tree.map(
    lambda *rows: np.concatenate(rows),
    batch,
    example_rows.padding_rows(jax.tree.map(lambda x: x[:1], batch), 5),
  )
  translated = bridge_task.bridge_task(own_task(), 'own')
  translated.config.evaluate.set(write_per_example_out=True)
  bridged = family_parity.Bridged(translated, batch, jax.devices()[:1])
  mdl_vars = bridged.program.init_state(batch).mdl_vars
  exact, found = (
    bridged.program.eval_step(mdl_vars, data) for data in (batch, padded)
  )
  assert exact.weighted['loss'][1] == batch.weights.sum()
  for name, (value, weight) in exact.weighted.items():
    np.testing.assert_allclose(found.weighted[name], (value, weight), rtol=1e-6)
  each = np.asarray(found.per_example['xent'])
  np.testing.assert_allclose(each[:3], exact.per_example['xent'], rtol=1e-6)
  np.testing.assert_array_equal(each[3:], np.zeros(5))


def test_auto_logs_why_a_task_is_bridged(caplog):
  caplog.set_level('INFO')
  translated = bridge_task.translate(own_task(), 'my.Task', 'auto')
  assert translated.config.model.cls is BridgedModel
  assert f'task ({OWN}.NextLetter): {registry.UNKNOWN}' in caplog.text
  assert 'my.Task is bridged: Lingvo computes it inside of JAX' in caplog.text
  note = translated.notes[-1]
  assert note.startswith('all of it is bridged, and not some of its layers: ')
  assert registry.UNKNOWN in note
  assert note in caplog.text
  with pytest.raises(errors.UserError, match=registry.UNKNOWN):
    bridge_task.translate(own_task(), 'my.Task', 'native')


def test_auto_prefers_a_translation():
  python_docs = lingvo_runtime.module('lm_tasks.lingvo_params.python_docs')
  params = python_docs.TransformerLmTiny().Task()
  params.input = python_docs.TransformerLmTiny().Train()
  for translation, expected in (
    ('auto', language_model.LanguageModel),
    ('native', language_model.LanguageModel),
    ('bridge', BridgedModel),
  ):
    translated = bridge_task.translate(params, 'docs', translation)
    assert issubclass(translated.config.model.cls, expected)


def _with_method(name):
  def change(params):
    params.cls = type('Changed', (params.cls,), {name: lambda self: None})

  return change


def _field(**fields):
  return lambda params: params.train.Set(**fields)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (_with_method('FProp'), r'Changed overrides FProp, which a bridged task'),
    (_with_method('AdjustGradients'), 'overrides AdjustGradients'),
    (_field(pruning_hparams_dict={'a': 1}), 'train.pruning_hparams_dict'),
    (lambda p: p.Set(build=lambda task: 1 / 0), 'ZeroDivisionError'),
  ],
)
def test_what_cannot_be_bridged_is_refused(change, words):
  params = small_task.params()
  change(params)
  with pytest.raises(errors.UserError, match=words):
    bridge_task.bridge_task(params, 'small')
  # If neither is possible, the error has every reason.
  with pytest.raises(errors.UserError, match=registry.UNKNOWN) as error:
    bridge_task.translate(params, 'small', 'auto')
  assert 'cannot be bridged' in str(error.value)


def print_collectives():
  """Prints the number of devices, and of each collective of a train step."""
  batch = letters(0, rows=16)
  translated = bridge_task.bridge_task(own_task(), 'own')
  bridged = family_parity.Bridged(translated, batch, jax.devices())
  state = bridged.program.init_state(nested(batch))
  compiled = bridged.program.train_step.lower(state, bridged.sharded(batch))
  text = compiled.compile().as_text()
  print(jax.device_count())
  for name in ('all-reduce', 'all-gather', 'all-to-all', 'collective-permute'):
    print(text.count(f' {name}('))


@pytest.mark.slow
def test_nothing_gathers_the_batch():
  """Sharded over devices, it needs all-reduces of sums and gradients only."""
  done = launching.run_function(
    print_collectives, XLA_FLAGS=launching.flags_of_devices(8)
  )
  assert done.returncode == 0, done.stderr[-6000:]
  devices, reduced, *others = map(int, done.stdout.split()[-5:])
  assert devices == 8
  assert reduced
  assert others == [0, 0, 0]


@pytest.mark.slow
def test_a_users_task_is_killed_and_continues(tmp_path):
  """By its name, with the user's code only."""
  source = trainer_runs.ROOT / 'tests/adaptors/bridge/own_task.py'
  (tmp_path / 'my_letters.py').write_text(source.read_text())
  folder = tmp_path / 'run'

  def flags(steps):
    override = (
      f'--model_params_override=task.train.max_steps : {steps};'
      'task.train.save_interval_steps : 2'
    )
    modules = '--import_modules=my_letters'
    return trainer_runs.flags(folder, modules, override, exp='my_letters.Tiny')

  path = dict(PYTHONPATH=f'{trainer_runs.ROOT}:{tmp_path}')
  with trainer_runs.start(flags(10_000), output=tmp_path, **path) as started:
    started.wait_until(lambda: trainer_runs.steps_saved(folder))
    started.process.kill()
    started.process.wait()
  [*_, saved] = trainer_runs.steps_saved(folder)
  done = trainer_runs.forked(*flags(saved + 2), **path)
  assert done.returncode == 0, done.stdout + done.stderr
  assert f'continues from the checkpoint of step {saved}' in done.stdout
  assert trainer_runs.steps_saved(folder)[-1] == saved + 2
  metrics = trainer_runs.metrics(folder)
  assert (saved + 2, 'eval_Dev', 'log_pplx') in metrics
