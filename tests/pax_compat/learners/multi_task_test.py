"""Tasks that are trained in turn, against steps computed in numpy."""

import jax
import numpy as np
import optax
import pytest

from pax_compat import errors, learners, optimizers
from pax_compat.base_layer import NON_TRAINABLE, PARAMS
from pax_compat.learners import sgf
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.pax_compat import two_tasks
from tests.pax_compat.two_tasks import DIMS, points

TURNS = ['short', 'long', 'long', 'short', 'short', 'long']


def _program(task=None):
  example = NestedMap({name: points(n, 1) for name, n in DIMS.items()})
  made = program.create(
    (task or two_tasks.task()).Instantiate(),
    partitioning.create_mesh(None, None),
    example,
  )
  return made, made.init_state(example)


def _numpy_steps(task: str, w) -> list:
  """Returns the weight of a task and its average after each step."""
  mean = variance = 0.0
  average, own, found = w, 0, []
  for step, turn in enumerate(TURNS):
    if turn == task:
      own += 1
      data = points(DIMS[task], step).points
      force = 2 * (w - data.mean(0)) + 0.01 * w
      mean = 0.9 * mean + 0.1 * force
      variance = 0.999 * variance + 0.001 * force**2
      # Adam's moments count the task's own steps, the rate counts all.
      unbiased = mean / (1 - 0.9**own)
      root = np.sqrt(variance / (1 - 0.999**own))
      decay = min(two_tasks.EMA, (1 + step) / (10 + step))
      average = decay * average + (1 - decay) * w
      rate = two_tasks.RATE * (1 - step / 10)
      w = w - rate * unbiased / (root + 1e-6)
    found.append((w, average))
  return found


def test_other_tasks_make_no_op_steps():
  made, state = _program()
  first = jax.tree.map(np.asarray, state.mdl_vars[PARAMS])
  wanted = {
    task: _numpy_steps(task, first[f'task_{task}']['w']) for task in DIMS
  }
  for step, turn in enumerate(TURNS):
    batch = NestedMap({turn: points(DIMS[turn], step)})
    before = jax.device_get(state)
    state, outputs = made.train_step(state, batch)
    names = outputs.scalar_names()
    rate = two_tasks.RATE * (1 - step / 10)
    np.testing.assert_allclose(outputs[f'{turn}/learning/lr'], rate, rtol=1e-5)
    assert not any(name.startswith('learning/') for name in names)
    [other] = DIMS.keys() - {turn}
    assert not any(name.startswith(f'{other}/') for name in names)
    averages = made.eval_vars(state, use_ema=True)[PARAMS]
    for task, values in wanted.items():
      weight, average = values[step]
      scope = f'task_{task}'
      np.testing.assert_allclose(
        state.mdl_vars[PARAMS][scope]['w'], weight, rtol=1e-4, atol=1e-6
      )
      np.testing.assert_allclose(
        averages[scope]['w'], average, rtol=1e-4, atol=1e-6
      )
      steps = state.mdl_vars[NON_TRAINABLE][scope]['steps']
      assert steps == TURNS[: step + 1].count(task)
    # Bit for bit, except the two counts of the run's steps.
    old, new = (
      learners.by_path(jax.device_get(s.opt_state[other]))
      for s in (before, state)
    )
    changed = {path for path in old if np.any(old[path] != new[path])}
    assert len(changed) == 2 and all('count' in path for path in changed)
  assert state.step == len(TURNS)


def test_learners_of_tasks_select_the_trained_weights():
  task = two_tasks.task()
  short = task.train.learner.learners['short']
  short.bprop_variable_exclusion = ['.*/w']
  made, state = _program(task)
  for turn in DIMS:
    before = np.asarray(state.mdl_vars[PARAMS][f'task_{turn}']['w'])
    batch = NestedMap({turn: points(DIMS[turn], 1)})
    state, _ = made.train_step(state, batch)
    after = np.asarray(state.mdl_vars[PARAMS][f'task_{turn}']['w'])
    assert np.array_equal(before, after) == (turn == 'short')
  short.bprop_variable_exclusion = ['params/v']
  with pytest.raises(errors.UserError, match="'params/v' matches the name of"):
    _program(task)


@pytest.mark.parametrize(
  ('optimizer', 'supported'),
  [
    (optimizers.Sgd.config(), True),
    (
      optimizers.OptaxOptimizer.config(
        grad_tx=optax.trace(0.9), scale_by_learning_rate=True
      ),
      True,
    ),
    (optimizers.Adafactor.config(), False),
    (
      optimizers.ShardedStaticAccumulator.config(
        optimizer_tpl=optimizers.Sgd.config(), num_sub_batches=2
      ),
      False,
    ),
    (optimizers.OptaxOptimizer.config(grad_tx=optax.trace(0.9)), False),
  ],
)
def test_optimizers_without_no_op_steps_are_refused(optimizer, supported):
  task = two_tasks.task()
  optimizer.learning_rate = 0.1
  for one in task.train.learner.learners.values():
    one.optimizer = optimizer
  if supported:
    made, state = _program(task)
    made.train_step(state, NestedMap(short=points(2, 1)))
    return
  with pytest.raises(errors.UserError, match='it does not support no-op steps'):
    _program(task)


def _without(task):
  del task.train.learner.learners['long']


def _with_more(task):
  task.train.learner.learners['more'] = two_tasks.learner()


def _averaging_one(task):
  task.train.learner.learners['long'].optimizer.ema_decay = 0.0


def _other_loss(task):
  task.train.learner.learners['long'].loss_name = 'rows'


def _private(task):
  task.train.learner.learners[
    'long'
  ].stochastic_gradient = sgf.DpSgdStochasticGradient.config(l2_norm_clip=1.0)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (_private, 'stochastic_gradient of the task long is DpSgdStochastic'),
    (_without, 'task_long/steps belongs to none of'),
    (_with_more, "'more', but the model has no weights of that task"),
    (_averaging_one, 'only short keep moving averages'),
    (_other_loss, "loss_name of the task long is 'rows'"),
  ],
)
def test_mistakes(change, words):
  task = two_tasks.task()
  change(task)
  with pytest.raises(errors.UserError, match=words):
    _program(task)
