"""Several tasks that are trained in turns, against Lingvo's MultiTaskModel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.translate import registry
from adaptors.translate.tasks import multi_task
from adaptors.translate.view import ParamsView, Report
from pax_compat import base_layer, errors, learners
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import parity, tiny_model, tiny_task

STEPS = 6
TOLERANCE = tiny_task.TOLERANCE


def _going_down():
  return tiny_task.schedule(
    'PolynomialSchedule', power=1, start=(0, 1.0), limit=(10, 0.1)
  )


def _run_lingvo(params, batches):
  """Trains in Lingvo; returns the tasks, and weights and averages by step."""
  tf = lingvo_runtime.module('lingvo.compat')
  order, weights, averages = [], [], []
  with tiny_model.built_in_lingvo(params, batches[0]) as (model, feeds):
    with fed_task.session(optimized=False) as session:
      session.run(tf.global_variables_initializer())
      variables = tiny_model.variables(model)
      averaged = {}
      if model.ema:
        averaged = {k: model.ema.average(v) for k, v in variables.items()}
      weights.append(session.run(variables))
      for step, batch in enumerate(batches):
        assert session.run(model.global_step) == step
        task = model.SampleTask(step)
        [name] = [n for n in model.task_names if model.GetTask(n) is task]
        order.append(name)
        feed = {feeds[name][k]: batch[k] for k in batch}
        session.run(task.train_op, feed)
        weights.append(session.run(variables))
        averages.append(session.run(averaged))
  return order, weights, averages


def _run_ours(params, batches, first):
  """As `_run_lingvo`, from the same initial weights."""
  translated = multi_task.translate_model(params, 'both')
  schedule = translated.schedule.Instantiate()
  variables = translated.task.variables
  example = NestedMap(tag=batches[0], words=batches[0])
  made = program.create(
    translated.task.config.Instantiate(),
    partitioning.create_mesh(None, None),
    example,
  )
  values = jax.tree.map(jnp.asarray, variables.to_jax(first))
  state = made.init_state(example)
  state = program.TrainState(
    step=state.step,
    mdl_vars={base_layer.PARAMS: values},
    opt_state=made.learner.init(
      jax.tree.map(jnp.copy, values), weight_metas=made.weight_metas
    ),
  )
  order, weights, averages = [], [first], []
  for step, batch in enumerate(batches):
    order.append(schedule.task_at(step, 0.5))
    state, _ = made.train_step(state, NestedMap({order[-1]: batch}))
    tree = state.mdl_vars[base_layer.PARAMS]
    weights.append(variables.to_lingvo(learners.by_path(tree)))
    average = {}
    if made.learner.has_ema:
      tree = made.eval_vars(state, use_ema=True)[base_layer.PARAMS]
      average = variables.to_lingvo(learners.by_path(tree))
    averages.append(average)
  return order, weights, averages


TASKS = {
  'tag': lambda: dict(
    # A small epsilon makes much of the rounding errors of small gradients.
    optimizer=tiny_task.optimizer('Adam', epsilon=0.1),
    lr_schedule=_going_down(),
    l2_regularizer_weight=0.01,
  ),
  'words': lambda: dict(
    optimizer=tiny_task.optimizer('Adagrad'),
    learning_rate=0.05,
    lr_schedule=_going_down(),
    clip_gradient_norm_to_value=0.2,
  ),
}


@pytest.mark.parametrize(
  ('schedule', 'fields', 'train', 'order'),
  [
    (
      'RoundRobinScheduler',
      dict(tasks=['words', 'tag']),
      {},
      ['words', 'tag'] * 3,
    ),
    (
      'SequentialScheduler',
      dict(task_steps=[('tag', 2), ('words', 3), ('tag', 1)]),
      dict(ema_decay=0.5),
      ['tag'] * 2 + ['words'] * 3 + ['tag'],
    ),
  ],
)
def test_steps_are_lingvos(schedule, fields, train, order):
  params = tiny_model.params(
    tiny_model.scheduler(schedule, **fields),
    train=train,
    **{task: made() for task, made in TASKS.items()},
  )
  batches = tiny_task.batches([1.0, 3.0, 0.5, 2.0, 1.0, 1.5])
  theirs, wanted, wanted_averages = _run_lingvo(params, batches)
  ours, weights, averages = _run_ours(params, batches, wanted[0])
  assert theirs == ours == order
  for found, want, what in (
    (weights, wanted, 'weights'),
    (averages, wanted_averages, 'averages'),
  ):
    assert len(found) == len(want)
    for step, values in enumerate(want):
      for path, value in values.items():
        where = f'{what} after step {step}: {path}'
        parity.assert_close(found[step][path], value, TOLERANCE, where)
  assert bool(wanted_averages[0]) == bool(averages[0]) == bool(train)
  for task in TASKS:  # Both were trained.
    path = f'{task}.first.w'
    assert np.abs(wanted[-1][path] - wanted[0][path]).max() > 1e-3


def _phases():
  """Returns fields of a scheduler of three, of which the first are random."""
  make = tiny_model.scheduler
  pairs = [('a', (0.9, 0.1)), ('b', (0.1, 0.9))]
  changing = make('ExponentialScheduler', alpha=0.1, task_probs=pairs)
  constant = make('ConstantScheduler', task_probs=[('c', 0.5), ('a', 0.5)])
  in_turn = make('RoundRobinScheduler', tasks=['b', 'a', 'c'])
  return dict(schedule_steps=[(changing, 40), (constant, 10), (in_turn, 7)])


@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('ConstantScheduler', dict(task_probs=[('words', 0.2), ('tag', 0.6)])),
    (
      'ExponentialScheduler',
      dict(alpha=0.3, task_probs=[('a', (0.1, 0.7)), ('b', (0.9, 0.3))]),
    ),
    (
      'SigmoidScheduler',
      dict(alpha=0.3, task_probs=[('a', (0.1, 0.7)), ('b', (0.9, 0.3))]),
    ),
    ('RoundRobinScheduler', dict(tasks=['b', 'a', 'c'])),
    ('SequentialScheduler', dict(task_steps=[('a', 3), ('b', 1), ('c', 5)])),
    ('PieceWiseScheduler', None),
  ],
)
def test_schedules_are_lingvos(name, fields):
  """With the random numbers that Lingvo's draw, ours draw the same tasks."""
  params = tiny_model.scheduler(name, **(fields or _phases()))
  report = Report()
  view = ParamsView(params.Copy(), 'schedule', report)
  ours = registry.translate(view).Instantiate()
  assert not report.issues
  with lingvo_runtime.cluster():
    theirs = params.Instantiate()
  before = np.random.get_state()
  try:
    np.random.seed(3)
    wanted = [theirs.Sample(step) for step in range(200)]
  finally:
    np.random.set_state(before)
  draws = np.random.RandomState(3)
  assert wanted == [
    ours.task_at(step, draws.random_sample()) for step in range(200)
  ]


def test_without_a_schedule_tasks_are_drawn_by_weight():
  params = tiny_model.params()
  params.task_probs.Set(words=1.5)
  made = multi_task.translate_model(params, 'both').schedule.Instantiate()
  assert made.weights == {'tag': 0.5, 'words': 1.5}
  assert list(made.weights) == ['tag', 'words']


def _global_step(params):
  params.task_global_step = True


def _adaptive(params):
  params.task_schedule = tiny_model.scheduler('SimpleAdaptiveScheduler')


def _averages(params):
  params.train.ema_decay = 0.9


def _unknown_field(params):
  params.vn.scale = 0.5


def _one_of_a_task(params):
  params.task_params.tag.train.lr_schedule.dtype = 'x'
  params.task_params.words.train.Set(pruning_hparams_dict={'a': 1})


def _accumulating(params):
  params.task_params.tag.train.optimizer = tiny_task.optimizer(
    'Accumulator',
    accum_steps=2,
    optimizer_tpl=tiny_task.optimizer('SGD'),
  )


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (_global_step, ['model.task_global_step', 'only False']),
    (_adaptive, ['SimpleAdaptiveScheduler): no translator is']),
    (_averages, ['it is 0.9, and that of task_params.tag 0.0']),
    (_unknown_field, ['model.vn']),
    (_one_of_a_task, ['task_params.words.train.pruning_hparams_dict']),
  ],
)
def test_what_is_not_translated_is_refused(change, words):
  params = tiny_model.params()
  change(params)
  with pytest.raises(errors.UserError) as error:
    multi_task.translate_model(params, 'both')
  for word in words:
    assert word in str(error.value)


def test_the_model_says_how_long_a_run_is():
  params = tiny_model.params()
  params.train.max_steps = 7
  params.task_params.tag.train.max_steps = 5
  params.task_params.words.train.max_steps = 7
  translated = multi_task.translate_model(params, 'both').task
  assert translated.config.train.num_train_steps == 7
  [note] = [note for note in translated.notes if 'max_steps' in note]
  assert note == (
    'task_params.tag.train.max_steps = 5 has no effect: model.train.max_steps'
    ' is used, 7'
  )


def test_an_optimizer_that_cannot_rest_is_refused():
  params = tiny_model.params()
  _accumulating(params)
  translated = multi_task.translate_model(params, 'both')
  with pytest.raises(errors.UserError, match='it does not support no-op steps'):
    translated.task.config.train.learner.Instantiate()


def test_expressions_are_about_the_names_of_a_model_of_several_tasks():
  params = tiny_model.params(tag=dict(bprop_variable_filter='^tag/tiny/first'))
  translated = multi_task.translate_model(params, 'both').task
  learner = translated.config.train.learner.learners['tag'].Instantiate()
  kept = [
    v.jax
    for v in translated.variables
    if v.jax.startswith('task_tag/')
    and not learner.excludes(v.jax.replace('task_tag/', 'params/', 1))
  ]
  assert kept and all(path.startswith('task_tag/first/') for path in kept)
