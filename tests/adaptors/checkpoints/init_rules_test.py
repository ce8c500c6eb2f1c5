"""Values of checkpoints in a new run, against Lingvo's own checkpointer."""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.checkpoints import init_rules, task_metadata
from pax_compat import base_layer, errors, learners
from tests.adaptors import native_library
from tests.adaptors.experiments import lingvo_experiment_test
from tests.adaptors.lingvo_checkpoint import lingvo_runs
from tests.adaptors.translate import parity, tiny_task

pytestmark = native_library.NEEDS_LINGVO


def _params(name, **train):
  going_down = tiny_task.schedule(
    'PolynomialSchedule', power=1, start=(0, 1.0), limit=(10, 0.1)
  )
  return tiny_task.params(
    optimizer=tiny_task.optimizer('Adam', epsilon=0.1),
    ema_decay=0.5,
    **{'lr_schedule': going_down, **train},
  ).Set(name=name)


@pytest.fixture(scope='module')
def old(tmp_path_factory):
  """A folder with the checkpoint of two steps of the task `old`."""
  folder = tmp_path_factory.mktemp('old')
  lingvo_runs.train(_params('old'), tiny_task.batches()[:2], folder)
  return folder


def _lingvo(params, data, folder):
  """Restores as Lingvo's trainer does, and trains.

  Returns:
    The variables and their averages before each step and after the last.
  """
  checkpointer = lingvo_runtime.module('lingvo.core.checkpointer')
  with fed_task.build(params, data[0]) as made:
    averages = {k: made.task.ema.average(v) for k, v in made.variables.items()}
    model = made.task.parent
    checkpointer.Checkpointer(str(folder), model).Restore(made.session)
    values = [made.session.run((made.variables, averages))]
    for batch in data:
      made.session.run(made.task.train_op, made.feed_dict(batch))
      values.append(made.session.run((made.variables, averages)))
  return values


def _start(params):
  translated = tiny_task.translate(params)
  rules = init_rules.read([params.train], tiny_task.params().train)
  metadata = task_metadata.of(params, translated)
  return init_rules.Start(rules, metadata), translated


def _check(params, data, folder):
  """Holds our run against Lingvo's; returns the step that it starts from."""
  wanted = _lingvo(params, data, folder)
  start, translated = _start(params)
  first = dict(wanted[0][0])
  _, made, _ = tiny_task.start(params, data[0], first, translated)
  state = start.state(made, data[0])

  def compare(step):
    averages = made.eval_vars(state, use_ema=True)
    for tree, want in zip(
      (state.mdl_vars, averages), wanted[step], strict=True
    ):
      found = translated.variables.to_lingvo(
        learners.by_path(tree[base_layer.PARAMS])
      )
      for path, value in want.items():
        parity.assert_close(found[path], value, 1e-5, f'{path}, {step}')

  compare(0)
  for step, batch in enumerate(data, 1):
    state, _ = made.train_step(state, batch)
    compare(step)
  return start.step


def test_a_run_starts_with_another_ones_values(old, tmp_path, caplog):
  """Their averages, too. Biases are zero at the start of both."""
  caplog.set_level('INFO')
  rules = {
    str(old): (
      [('new/(.*)', 'old/%s'), ('nothing', 'nothing')],
      ['new/second/b/var', '.*/first/w/var/Adam'],
    )
  }
  params = _params('new', init_from_checkpoint_rules=rules)
  assert _check(params, tiny_task.batches()[:1], tmp_path) == 0
  assert 'are loaded from' in caplog.text
  assert 'new/first/w/var from old/first/w/var' in caplog.text
  assert "the rule ('nothing', 'nothing') matches no variable" in caplog.text


@pytest.mark.slow
def test_everything_is_loaded(old, tmp_path):
  rules = {'nowhere': ([('(.*)', '%s')], [])}
  params = _params(
    'old',
    init_from_checkpoint_rules=rules,
    init_from_checkpoint_override=str(old / 'ckpt-00000002'),
  )
  assert _check(params, tiny_task.batches()[2:], tmp_path) == 2


def test_an_experiment_starts_with_them(old):
  """The path is overridden, as on the command line."""

  def change(task):
    task.train.Set(
      init_from_checkpoint_rules={'nowhere': ([('tiny/(.*)', 'old/%s')], [])}
    )

  made = lingvo_experiment_test._experiment(
    lingvo_experiment_test._model_params(task=change),
    model_params_override=f'task.train.init_from_checkpoint_override : {old}',
  )
  start = made.start()
  assert start.step == 0
  assert f'of {old}/ckpt-00000002' in str(start)
  plain = lingvo_experiment_test._model_params()
  assert lingvo_experiment_test._experiment(plain).start() is None


@pytest.mark.parametrize(
  'rules,words',
  [
    (lambda old: {str(old): [[], []]}, 'expected a tuple of two lists'),
    (lambda old: {str(old): ([('(', '%s')], [])}, 'not a regular expression'),
    (lambda old: {str(old): ([('(.*)', '%s')], [])}, 'did you mean: old/'),
    (lambda old: {str(old): ([('(.*)', 'old')], [])}, 'does not fit'),
    (lambda old: {str(old): ([('old', 'old')], [])}, 'matches no variable'),
    (lambda old: {'/nowhere': ([('(.*)', '%s')], [])}, 'does not exist'),
    (
      lambda old: {
        str(old): ([('new/(.*)', 'old/%s')], []),
        str(old / 'ckpt-00000001'): ([('new/(.*)', 'old/%s')], []),
      },
      'two checkpoints have rules for',
    ),
    (
      lambda old: {
        str(old): (
          [('new/first/w/var:0', 'old/second/w/var')],
          [],
        )
      },
      r'for mdl_vars.params.first.* \[4, 4\]; expected the same shape',
    ),
  ],
)
def test_what_is_refused(rules, words, old, program_of_new):
  params = _params('new', init_from_checkpoint_rules=rules(old))
  with pytest.raises(errors.UserError, match=words):
    start, _ = _start(params)
    start.state(*program_of_new)


@pytest.fixture(scope='module')
def program_of_new():
  """The program of the task `new`, and a batch."""
  params, [batch, *_] = _params('new'), tiny_task.batches()
  translated = tiny_task.translate(params)
  zeros = {
    theta: np.zeros(shape, np.float32)
    for theta, shape in (
      ('emb.wm[0]', (7, 4)),
      ('first.w', (4, 4)),
      ('first.b', (4,)),
      ('second.w', (4, 2)),
      ('second.b', (2,)),
    )
  }
  _, made, _ = tiny_task.start(params, batch, zeros, translated)
  return made, jax.tree.map(np.asarray, batch)
