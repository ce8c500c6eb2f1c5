"""Tests of Lingvo experiments with one task: the task and the datasets."""

import types

import pytest

from adaptors import lingvo_runtime
from adaptors.equivalents import lingvo_early_stopping, lingvo_schedules
from adaptors.experiments import lingvo_experiment
from adaptors.lingvo_input import (
  eval_adaptors,
  input_adaptor,
)
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors
from tests.adaptors.translate import tiny_task


def _model_params(*, task=None, schedule=None, held_out=()):
  """Returns an instance of a class like those that users register.

  Args:
    task: changes the task's Params.
    schedule: fields of its program schedule.
    held_out: names of the held-out datasets.
  """
  base = lingvo_runtime.module('lingvo.core.base_model_params')
  program = lingvo_runtime.module('lingvo.core.program')

  class Model(base.SingleTaskModelParams):
    """A tiny one."""

    def Train(self):
      return tiny_task.params().input

    def Task(self):
      params = tiny_task.params()
      params.input = None
      if task:
        task(params)
      return params

    def ProgramSchedule(self):
      settings = dict(
        train_dataset_name='Train',
        train_steps_per_loop=100,
        eval_dataset_names=[],
        eval_steps_per_loop=5,
        decode_steps_per_loop=0,
      )
      return program.SimpleProgramScheduleForTask(
        **{**settings, **(schedule or {})}
      )

  for name in held_out:
    setattr(Model, name, lambda self: self.Train().Set(bucket_batch_limit=[4]))
  return Model()


def _experiment(model_params, **options):
  return lingvo_experiment.LingvoExperiment(
    name='lm.tiny.Model',
    model_params=model_params,
    options=LingvoOptions(**options),
  )


def test_the_intervals_of_evaluation_and_decoding():
  experiment = _experiment(
    _model_params(
      held_out=['Dev', 'Test'],
      schedule={
        'eval_dataset_names': ['Train', 'Dev', 'Test'],
        'eval_steps_per_loop': [3, 3, 0],
        'decode_steps_per_loop': [0, 0, 2],
        'decode_trigger_interval': 2,
      },
    )
  )
  train = experiment.task().train
  assert train.eval_interval_steps == 100
  assert train.eval_during_training == ('Dev',)
  assert not train.eval_skip_train
  assert train.decode_interval_steps == 200
  assert train.decode_start_after_n_steps == 0
  assert [d.name for d in experiment.datasets()] == ['Train', 'Dev', 'Test']
  assert [d.name for d in experiment.decode_datasets()] == ['Test']


def test_nothing_but_training():
  experiment = _experiment(_model_params())
  train = experiment.task().train
  assert train.eval_during_training == ()
  assert train.eval_skip_train
  assert train.decode_interval_steps is None
  assert [d.name for d in experiment.datasets()] == ['Train']
  assert not experiment.decode_datasets()


def test_held_out_datasets_are_those_of_lingvos_jobs():
  """Without a schedule, jobs decode them; training does not."""
  model_params = _model_params(held_out=['Dev', 'Test'])
  factory = lingvo_runtime.module('lingvo.core.cluster_factory')
  original, jobs = type(model_params).Dev, []

  def dev(self):
    jobs.append((factory.Current().job, factory.Current().do_eval))
    return original(self)

  type(model_params).Dev = dev
  experiment = _experiment(model_params)
  assert experiment.task().train.decode_interval_steps is None
  assert [d.name for d in experiment.datasets()] == ['Train', 'Dev', 'Test']
  assert [d.name for d in experiment.decode_datasets()] == ['Dev', 'Test']
  assert jobs == [('evaler', True), ('decoder', True)]


@pytest.mark.parametrize('method', ['Model', 'Train', 'Dev', 'ProgramSchedule'])
def test_a_typo_in_a_method_of_the_class_is_reported_with_its_location(method):
  model_params = _model_params(held_out=['Dev'])
  params = model_params.Train()

  def typo(self):
    return params.Set(bucket_uper_bound=[3])

  setattr(type(model_params), method, typo)
  wrong = (
    rf"Model.{method}\(\) fails: .*no field 'bucket_uper_bound'; did you mean:"
    r' bucket_upper_bound, .*py:'
  )
  with pytest.raises(errors.UserError, match=wrong):
    experiment = _experiment(model_params)
    experiment.task()
    experiment.datasets()


def test_a_dataset_is_params():
  model_params = _model_params(held_out=['Dev'])
  type(model_params).Dev = lambda self: None
  with pytest.raises(errors.UserError, match=r'Model.Dev\(\) returns None'):
    _experiment(model_params).datasets()


def test_replay_is_of_the_training_data():
  model_params = _model_params(held_out=['Dev'])
  train, dev = _experiment(model_params, lingvo_input_replay=True).datasets()
  assert train.replay and not dev.replay
  train, _ = _experiment(model_params).datasets()
  assert not train.replay


def test_infinite_datasets_are_evaluated_by_number_of_batches():
  inputs = lingvo_runtime.module('lingvo.core.base_input_generator')
  model_params = _model_params(
    held_out=['Dev', 'Test'],
    schedule={'eval_dataset_names': ['Dev'], 'eval_steps_per_loop': 3},
  )
  dev, _ = _experiment(model_params).eval_datasets()
  assert dev.cls is eval_adaptors.LingvoEvalAdaptor
  assert dev.batch_size == 4 and dev.reset_for_eval
  assert (dev.eval_steps, dev.eval_samples) == (3, 1000)
  for name in ('Dev', 'Test'):  # They make up their examples.
    made_up = inputs.BaseInputGenerator.Params().Set(batch_size=4)
    setattr(type(model_params), name, lambda self, p=made_up: p.Copy())
  dev, test = _experiment(model_params).eval_datasets()
  assert dev.cls is input_adaptor.LingvoInputAdaptor
  assert dev.eval_loop_num_batches == 3 and not dev.reset_for_eval
  # The schedule does not limit it; it may be finite.
  assert test.cls is eval_adaptors.LingvoEvalAdaptor


@pytest.mark.parametrize(
  ('of_task', 'of_input', 'evaluated', 'decoded'),
  [
    ({}, {}, 1000, 1000),
    ({'decoder_samples_per_summary': 0}, {}, 1000, 0),
    ({'samples_per_summary': 0}, {'num_samples': 50}, 50, 50),
    ({'samples_per_summary': 20}, {'num_samples': 50}, 20, 20),
    (
      {'samples_per_summary': 20},
      {'eval_samples_per_summary': 7, 'decoder_samples_per_summary': 8},
      7,
      8,
    ),
  ],
)
def test_numbers_of_samples(of_task, of_input, evaluated, decoded):
  inputs = lingvo_runtime.module('lingvo.core.base_input_generator')
  settings = tiny_task.params().eval.Set(**of_task)
  params = inputs.BaseInputGenerator.Params().Set(**of_input)
  found = [
    lingvo_experiment.samples_of(settings, params, decodes=decodes)
    for decodes in (False, True)
  ]
  assert found == [evaluated, decoded]


def _stopping(jobname):
  def change(params):
    params.train.early_stop.window = 300
    params.train.early_stop.metric_history.jobname = jobname

  return change


def test_early_stopping_by_a_dataset_that_the_schedule_leaves_out():
  experiment = _experiment(
    _model_params(task=_stopping('eval_dev'), held_out=['Dev'])
  )
  task = experiment.task()
  stop = task.Instantiate().create_early_stopping_fn()
  assert isinstance(stop, lingvo_early_stopping.EarlyStop)
  assert (stop.split, stop.window) == ('eval_Dev', 300)
  assert task.train.eval_during_training == ('Dev',)


def _scheduled(jobname):
  def change(params):
    params.train.lr_schedule = tiny_task.schedule('DevBasedSchedule')
    params.train.lr_schedule.metric_history.jobname = jobname

  return change


def test_a_schedule_by_a_dataset_that_the_program_schedule_leaves_out():
  experiment = _experiment(
    _model_params(task=_scheduled('eval_dev'), held_out=['Dev'])
  )
  task = experiment.task()
  schedule = task.train.learner.optimizer.lr_schedule.Instantiate()
  assert isinstance(schedule, lingvo_schedules.DevBased)
  assert schedule.split == 'eval_Dev'
  assert task.train.eval_during_training == ('Dev',)
  experiment = _experiment(
    _model_params(task=_scheduled('eval_dev'), held_out=['Test'])
  )
  with pytest.raises(errors.UserError, match="lr_schedule.*'eval_dev'"):
    experiment.task()


def test_early_stopping_by_a_dataset_that_does_not_exist():
  experiment = _experiment(
    _model_params(task=_stopping('eval_dev'), held_out=['Test'])
  )
  with pytest.raises(errors.UserError, match="'eval_dev'.*are Test"):
    experiment.task()


def test_overrides_of_train_params():
  experiment = _experiment(
    _model_params(), model_params_override='task.train.max_steps : 7'
  )
  assert experiment.task().train.num_train_steps == 7


def test_a_multi_task_model_is_refused():
  base = lingvo_runtime.module('lingvo.core.base_model')
  model_params = types.SimpleNamespace(Model=base.MultiTaskModel.Params)
  with pytest.raises(
    errors.UserError, match='model is a MultiTaskModel; expected'
  ):
    _experiment(model_params)


def test_a_derived_model_is_refused():
  base = lingvo_runtime.module('lingvo.core.base_model')

  class Renamed(base.SingleTaskModel):
    """Nothing is different."""

  class Sampling(Renamed):
    """Overrides SampleTask."""

    def SampleTask(self, global_step):
      return None

  for cls, is_known in ((Renamed, True), (Sampling, False)):
    model_params = _model_params()
    type(model_params).Model = lambda self, cls=cls: cls.Params(self.Task())
    if is_known:
      _experiment(model_params)
      continue
    with pytest.raises(errors.UserError, match='Sampling overrides SampleTask'):
      _experiment(model_params)


@pytest.mark.parametrize(
  ('fields', 'size'),
  [
    (dict(batch_size=4), 4),
    (dict(batch_size=4, bucket_batch_limit=[8, 2]), 2),
    (dict(batch_size=0), None),
  ],
)
def test_the_batch_size_of_an_evaluation(fields, size):
  hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')
  params = hyperparams.Params()
  for name, value in fields.items():
    params.Define(name, value, '')
  if size is None:
    with pytest.raises(
      errors.UserError, match=r'Dev\(\).batch_size is 0;.*set'
    ):
      lingvo_experiment._eval_batch_size('Dev', params)
  else:
    assert lingvo_experiment._eval_batch_size('Dev', params) == size
