"""Tests of what a study does, given its flags and its experiment."""

import functools

import pyglove as pg
import pytest

from pax_compat import errors
from pax_compat.experiments import class_attributes, resolved
from pax_compat.tuning import automl, planning, records, spaces
from tests.pax_compat import counting_experiment
from tests.pax_compat.tuning import tuned_experiment

_RATE = 'task.train.learner.optimizer.learning_rate'


class Hypers(tuned_experiment._Tuned):
  """Its learning rate and one of its classes are searched."""

  LEARNING_RATE = pg.floatv(1e-4, 1e-2, scale='log')
  WAIT_AT = pg.oneof([0, 1])
  KIND = pg.oneof([counting_experiment.CountingInput, None, 'x', [1, 2]])


def _plan(experiment, *tune, **options):
  return planning.plan(
    functools.partial(class_attributes.changed, experiment),
    planning.Options(study='s', experiment='E', tune=tune, **options),
  )


def test_defaults():
  plan = _plan(
    counting_experiment.Counting(), f'{_RATE}=log:1e-4..1e-2', num_trials=3
  )
  assert plan.settings == records.Settings(
    study='s',
    experiment='E',
    space={_RATE: 'log:0.0001..0.01'},
    search='random',
    seed=0,
    metric='eval/loss',
    goal='min',
    value='last',
  )
  assert plan.num_trials == 3 and plan.workers == 1


def test_settings_of_another_algorithm():
  evolution = records.Evolution(population_size=4, tournament_size=2)
  given = dict(num_trials=3, evolution=evolution)
  plan = _plan(
    counting_experiment.Counting(), f'{_RATE}=1,2', search='evolution', **given
  )
  assert plan.settings.evolution == evolution
  with pytest.raises(errors.UserError, match='--search=random does not read'):
    _plan(counting_experiment.Counting(), f'{_RATE}=1,2', **given)


def test_search_of_an_experiment_and_flags_that_come_first():
  experiment = tuned_experiment.Searched()
  plan = _plan(experiment, 'attr:LEARNING_RATE=0.1,0.2')
  found = plan.settings
  assert (found.search, found.seed, found.goal) == ('random', 7, 'min')
  assert (found.metric, found.value) == ('eval_dev/loss', 'best')
  assert found.stopping == records.Stopping(
    rule='value', step_values=((5, 2.0), (10, 1.5))
  )
  assert plan.num_trials == 5
  assert plan.space.flags({'LEARNING_RATE': '0.2'}) == [
    '--attr=LEARNING_RATE=0.2'
  ]
  mine = _plan(
    experiment,
    'attr:LEARNING_RATE=0.1,0.2',
    search='grid',
    metric='train/loss',
    goal='max',
    value='last',
    num_trials=2,
    stopping=records.Stopping(),
  )
  assert (mine.settings.search, mine.settings.metric) == ('grid', 'train/loss')
  assert (mine.settings.goal, mine.settings.value) == ('max', 'last')
  assert mine.settings.stopping.rule == 'none' and mine.num_trials == 2


def test_class_attributes_of_pyglove():
  space = planning.space_of(Hypers(), ())
  assert dict(space.described()) == {
    'KIND': 'CountingInput,None,x,[1, 2]',
    'LEARNING_RATE': 'log:0.0001..0.01',
    'WAIT_AT': '0,1',
  }
  plan = _plan(Hypers(), num_trials=2)
  assert plan.settings.space == space.described()
  for kind, value in zip(
    space.parameters[0].labels,
    (counting_experiment.CountingInput, None, 'x', [1, 2]),
    strict=True,
  ):
    changed = class_attributes.changed(Hypers(), [f'KIND={kind}'])
    assert changed.KIND == value
  # One that is given has one value only.
  fixed = class_attributes.changed(Hypers(), ['WAIT_AT=1'])
  assert planning.space_of(fixed, ()).names == ('KIND', 'LEARNING_RATE')
  assert (
    planning.space_of(fixed, ['attr:KIND=x,None']).parameters[0]
    == spaces.parsed(['attr:KIND=x,None']).parameters[0]
  )


def test_without_a_study_each_attribute_has_a_value():
  with pytest.raises(
    errors.UserError, match='Hypers.KIND is a search space of PyGlove; expected'
  ):
    resolved.resolve(Hypers(), name='E')
  chosen = ['KIND=x', 'WAIT_AT=1', 'LEARNING_RATE=1e-3']
  found = resolved.resolve(class_attributes.changed(Hypers(), chosen), name='E')
  assert found.task.train.learner.optimizer.learning_rate == 1e-3
  for wrong, message in (
    ('KIND=y', "'y' is not one of the values of the pg.oneof: Count"),
    ('LEARNING_RATE=1', 'expected a number from 0.0001 to 0.01, got'),
    ('LEARNING_RATE=x', 'expected a number from'),
  ):
    with pytest.raises(errors.UserError, match=message):
      class_attributes.changed(Hypers(), [wrong])


def test_a_search_space_within_a_config_is_an_error():
  class Inside(tuned_experiment._Tuned):
    def task(self):
      task = super().task()
      task.train.learner.optimizer.learning_rate = pg.oneof([0.1, 0.2])
      return task

  with pytest.raises(errors.UserError, match=f'{_RATE} is a search space'):
    resolved.resolve(Inside(), name='E')


def test_parameter_sweep():
  plan = _plan(tuned_experiment.Swept())
  [parameter] = plan.space.parameters
  assert parameter.name == 'LEARNING_RATE,WAIT_AT' and parameter.size == 2
  assert parameter.flags('LEARNING_RATE=1e-07 WAIT_AT=0') == [
    *('--attr=LEARNING_RATE=1e-07', '--attr=WAIT_AT=0')
  ]
  assert plan.settings.search == 'grid' and plan.num_trials is None
  for rows, message in (
    ([('LEARNING_RATE',)], 'expected a tuple of names, then'),
    ([('LEARNING_RATE',), (1, 2)], 'expected a tuple of names, then'),
    ([('LEARNIG_RATE',), (1,)], 'did you mean: LEARNING_RATE'),
  ):
    with pytest.raises(ValueError, match=message) as raised:
      automl.parameter_sweep(rows)(tuned_experiment._Tuned)
    assert isinstance(raised.value, errors.UserError)


@pytest.mark.parametrize(
  'tune, options, message',
  [
    ((), {}, 'Counting has no class attribute to search'),
    (
      ('task.train.lerner.x=1,2',),
      {},
      "no field 'lerner'; did you mean: learn",
    ),
    (('train.num_train_steps=1,2',), {}, 'did you mean: task.train.num_train'),
    (('attr:SETING=1,2',), {}, 'no class attribute .*; did you mean: SETTINGS'),
    (('task.train.num_train_steps=0.5..2',), {}, "expected int.*got '0.5'"),
    (('task.train.num_train_steps=1,2',), {}, 'needs --num_trials'),
    (
      ('task.train.num_train_steps=1,2',),
      dict(settings=('task.train.num_train_steps=5',)),
      '--set=task.train.num_train_steps is given, and the study searches it',
    ),
    (
      ('attr:SETTINGS={},{1:2}',),
      dict(flags=('--exp=E', '--attr=SETTINGS={}')),
      '--attr=SETTINGS is given, and the study searches it',
    ),
    ((f'{_RATE}=1,2',), dict(metric='eval_d/x'), 'eval datasets eval_dev'),
    ((f'{_RATE}=1,2',), dict(metric='decode/x'), 'has no decode dataset'),
    ((f'{_RATE}=1,2',), dict(metric='loss'), 'expected <split>/<name>'),
  ],
)
def test_mistakes(tune, options, message):
  with pytest.raises(errors.UserError, match=message) as e:
    _plan(counting_experiment.Counting(), *tune, **options)
  assert '\n' not in str(e.value)


_FIELDS = {
  'prior_study_ids': [1],
  'add_prior_trials': True,
  'enable_partitioner_tuning': True,
  'enable_train_programs_tuning': True,
  'vizier_service_endpoint': 'x',
}


@pytest.mark.parametrize('field', _FIELDS)
def test_fields_that_are_not_supported(field):
  class Wrong(tuned_experiment._Tuned):
    def search(self):
      return automl.SearchHParams(**{field: _FIELDS[field]})

  with pytest.raises(errors.UserError, match=f'{field} is not supported: '):
    _plan(Wrong(), 'attr:LEARNING_RATE=1,2')


class OwnReward(automl.BaseReward):
  """A reward that a study does not use."""


@pytest.mark.parametrize(
  'search, message',
  [
    (
      lambda: automl.SearchHParams(
        search_algorithm=automl.RegularizedEvolution.config(mutator=str)
      ),
      'mutator of RegularizedEvolution is not supported: a child',
    ),
    (
      lambda: automl.SearchHParams(
        search_algorithm=automl.RegularizedEvolution.config(population_size=5)
      ),
      'tournament_size is 10 and population_size 5; expected 1 <=',
    ),
    (
      lambda: automl.hyperparameter_tuning(
        automl.Metric.eval('loss'),
        cross_step_metric_aggregator=automl.MetricsWithMinValue.config(),
      ),
      'MetricsWithMinValue does not fit the goal',
    ),
    (
      lambda: automl.hyperparameter_tuning(
        automl.Metric.eval('loss'), goal='least'
      ),
      "goal is 'least'; expected",
    ),
    (
      lambda: automl.hyperparameter_tuning(
        automl.Metric.eval('loss'), reward_for_nan=1.0
      ),
      'reward_for_nan is not supported',
    ),
    (
      lambda: automl.Metric.eval('loss', aggregator='max'),
      "aggregator 'max' of a Metric is not supported: use a MetricAggregator",
    ),
    (
      lambda: automl.hyperparameter_tuning(
        automl.Metric.eval('loss', aggregator=automl.MetricAggregator.SUM)
      ),
      'aggregator of a metric is not supported without sub_experiments',
    ),
    (lambda: automl.Metric.num_params(), 'num_params is not supported'),
    (
      lambda: automl.neural_architecture_search(
        [automl.Metric.eval('loss'), automl.Metric.train_steps_per_second()],
        150.0,
      ),
      'of several metrics is not supported: use one Metric',
    ),
    (
      lambda: automl.SearchHParams(search_reward=OwnReward.config()),
      'OwnReward is not supported; expected SingleObjective',
    ),
    (lambda: None, 'returns a NoneType; expected an automl.SearchHParams'),
  ],
)
def test_searches_that_are_not_supported(search, message):
  class Wrong(tuned_experiment._Tuned):
    def search(self):
      return search()

  with pytest.raises(errors.UserError, match=message):
    _plan(Wrong(), 'attr:LEARNING_RATE=1,2')


def test_evolution_of_pax(caplog):
  class Evolved(tuned_experiment._Tuned):
    def search(self):
      return automl.SearchHParams(
        search_algorithm=automl.RegularizedEvolution.config(
          population_size=4, tournament_size=2, seed=7
        ),
        max_num_trials=4,
      )

  settings = _plan(Evolved(), 'attr:LEARNING_RATE=1..2').settings
  assert (settings.search, settings.seed) == ('evolution', 7)
  assert settings.evolution == records.Evolution(
    population_size=4, tournament_size=2
  )
  assert 'all 4 trials will be random' in caplog.text


def test_architecture_search_of_pax():
  class Searched(tuned_experiment._Tuned):
    def search(self):
      return automl.neural_architecture_search(automl.Metric.eval('loss'))

  plan = _plan(Searched(), 'attr:LEARNING_RATE=1..2')
  assert (plan.settings.search, plan.settings.goal) == ('evolution', 'max')
  assert plan.num_trials == 10_000


def test_a_trial_is_skipped():
  error = automl.EarlyStoppingError(skip_reason='too large')
  assert error.skip and error.skip_reason == 'too large'
  assert str(error) == 'the trial is skipped: too large'
  assert error.step is error.reward is error.metrics is error.checkpoint is None
  with pytest.raises(errors.UserError, match='early_stopping_fn of the task'):
    automl.EarlyStoppingError(skip=False, step=1, reward=1.0)


class Two(tuned_experiment._Tuned):
  """Two experiments in one trial."""

  NAMES = 'a', 'b'

  def sub_experiments(self):
    return dict.fromkeys(self.NAMES, type(self))


def test_sub_experiments():
  tune = 'attr:LEARNING_RATE=1,2'
  plan = functools.partial(_plan, search='grid')
  assert plan(Two(), tune).settings.sub_experiments == ('a', 'b')
  assert not plan(tuned_experiment._Tuned(), tune).settings.sub_experiments

  class Stopped(Two):
    def search(self):
      return tuned_experiment.Searched().search()

  class Unnamed(Two):
    NAMES = 'a', '../b'

  class OfNone(Two):
    def search(self):
      metric = automl.Metric.eval('loss', sub_experiment_id='c')
      return automl.hyperparameter_tuning(metric)

  for experiment, message in (
    (Stopped(), '--tune_stopping=value is not supported with sub_experiments'),
    (Unnamed(), r"has the name '../b'; expected letters"),
    (OfNone(), "of the experiment 'c'; expected one of a, b"),
  ):
    with pytest.raises(errors.UserError, match=message):
      plan(experiment, tune)
