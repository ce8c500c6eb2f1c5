"""Tests of Lingvo experiments with several tasks."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.experiments import lingvo_multi_task
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import errors
from pax_compat.inputs import multi_task_input
from tests.adaptors.translate import tiny_task
from tests.pax_compat import trainer_runs

TASKS = ('tag', 'words')
MODULE = '''
from lingvo import model_registry
from lingvo.core import base_model, base_model_params, hyperparams
from lm_tasks.lingvo_params import python_docs


class Letters(python_docs.TransformerLmTiny):
  """One layer."""

  NUM_LAYERS, MODEL_DIM, HIDDEN_DIM, NUM_HEADS = 1, 8, 8, 2
  BUCKET_BATCH_LIMIT = (4, 4, 4)


class Wider(Letters):
  """A derived model."""

  MODEL_DIM = 12


@model_registry.RegisterMultiTaskModel
class Both(base_model_params.MultiTaskModelParams):
  """Two language models."""

  TASKS = dict(letters=Letters, wider=Wider)

  def Train(self):
    p = hyperparams.Params()
    for name, cls in self.TASKS.items():
      p.Define(name, cls().Train(), '')
    return p

  def Dev(self):
    p = hyperparams.Params()
    for name, cls in self.TASKS.items():
      # Few enough lines for a test.
      p.Define(name, cls().Dev().Set(num_samples=8), '')
    return p

  def Model(self):
    p = base_model.MultiTaskModel.Params().Set(name='both')
    for name, cls in self.TASKS.items():
      p.task_params.Define(name, cls().Task(), '')
      p.task_probs.Define(name, 0.5, '')
    p.train.Set(max_steps=8, save_interval_steps=2, summary_interval_steps=1)
    return p
'''


def _model_params(*, schedule=None, held_out=(), change=lambda params: None):
  """Returns an instance of a class like those that users register.

  Args:
    schedule: steps that each task's program schedule trains; None for none.
    held_out: names of the held-out datasets.
    change: changes the model's Params.
  """
  base = lingvo_runtime.module('lingvo.core.base_model_params')
  models = lingvo_runtime.module('lingvo.core.base_model')
  program = lingvo_runtime.module('lingvo.core.program')
  hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')

  class Model(base.MultiTaskModelParams):
    """A tiny one."""

    def Train(self):
      inputs = hyperparams.Params()
      for task in TASKS:
        data = tiny_task.params().input.Set(bucket_batch_limit=[4])
        inputs.Define(task, data, '')
      return inputs

    def Model(self):
      params = models.MultiTaskModel.Params().Set(name='tiny')
      for task in TASKS:
        own = tiny_task.params().Set(input=None)
        params.task_params.Define(task, own, '')
        params.task_probs.Define(task, 0.5, '')
      change(params)
      return params

    def ProgramSchedule(self):
      if schedule is None:
        return super().ProgramSchedule()
      made = {
        task: program.SimpleProgramScheduleForTask(
          train_dataset_name='Train',
          train_steps_per_loop=steps,
          eval_dataset_names=list(held_out),
          eval_steps_per_loop=5,
          decode_steps_per_loop=0,
        )
        for task, steps in schedule.items()
      }
      container = program.MultiTaskProgramSchedule.Params()
      return container.Set(program_schedule_dict=made)

  for name in held_out:
    setattr(Model, name, Model.Train)
  return Model()


def _experiment(override=None, translation='auto', **settings):
  return lingvo_multi_task.LingvoMultiTaskExperiment(
    name='lm.tiny.Both',
    model_params=_model_params(**settings),
    options=LingvoOptions(
      model_params_override=override, translation=translation
    ),
  )


def test_the_datasets_of_each_task():
  experiment = _experiment(held_out=['Dev'])
  train, *others = experiment.datasets()
  assert train.cls is multi_task_input.MultiTaskInput and train.is_training
  assert [one.name for one in train.inputs.values()] == [
    'Train_tag',
    'Train_words',
  ]
  assert train.steps_per_draw == 1
  assert [(d.name, d.input.name, d.task) for d in others] == [
    ('Dev_tag', 'Dev_tag', 'tag'),
    ('Dev_words', 'Dev_words', 'words'),
  ]
  # Without a schedule, evaluations run only at the end.
  assert experiment.task().train.eval_during_training == ()
  assert experiment.task().train.eval_skip_train


def _in_turn(params):
  scheduler = lingvo_runtime.module('lingvo.core.task_scheduler')
  params.task_schedule = scheduler.RoundRobinScheduler.Params().Set(
    tasks=['words', 'tag']
  )


def test_a_program_schedule_sets_the_steps_per_draw():
  experiment = _experiment(
    held_out=['Dev'], schedule=dict.fromkeys(TASKS, 20), change=_in_turn
  )
  train = experiment.training_dataset()
  schedule = train.schedule.Instantiate()
  assert train.steps_per_draw == 20
  found = [schedule.task_at(step, 0.5) for step in range(0, 80, 20)]
  assert found == ['words', 'tag', 'words', 'tag']
  settings = experiment.task().train
  assert settings.eval_interval_steps == 20
  assert settings.eval_during_training == ('Dev_tag', 'Dev_words')


def _in_phases(params):
  _in_turn(params)
  scheduler = lingvo_runtime.module('lingvo.core.task_scheduler')
  params.task_schedule = scheduler.PieceWiseScheduler.Params().Set(
    schedule_steps=[(params.task_schedule, 40), (params.task_schedule, 1)]
  )


def test_turns_within_phases_have_the_steps_of_a_draw():
  experiment = _experiment(
    held_out=['Dev'], schedule=dict.fromkeys(TASKS, 20), change=_in_phases
  )
  schedule = experiment.training_dataset().schedule.Instantiate()
  found = [schedule.task_at(step, 0.5) for step in range(0, 80, 20)]
  assert found == ['words', 'tag', 'words', 'tag']


def test_overrides():
  experiment = _experiment(
    override='train.max_steps : 7; task_params.tag.train.learning_rate : 0.25'
  )
  task = experiment.task()
  assert task.train.num_train_steps == 7
  rates = {
    name: learner.optimizer.learning_rate
    for name, learner in task.train.learner.learners.items()
  }
  assert rates == {'tag': 0.25, 'words': 0.1}


def _shared(params):
  models = lingvo_runtime.module('lingvo.core.multitask_model')
  params.cls = models.RegExSharedVariableModel


def _one_task(params):
  params.task_params.Delete('tag')


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (dict(change=_shared), 'RegExSharedVariableModel overrides .*__init__'),
    (dict(change=_one_task), 'fewer than two tasks'),
    (dict(schedule={'tag': 20}), r'has the tasks tag; expected tag, words'),
    (dict(schedule={'tag': 20, 'words': 10}), 'of tag, words differ'),
  ],
)
def test_unsupported_settings_are_refused(settings, message):
  with pytest.raises(errors.UserError, match=message):
    _experiment(**settings).task()


def test_there_are_no_params_of_a_single_task():
  with pytest.raises(errors.UserError, match='the tasks tag, words; expected'):
    _experiment().task_params()


def test_names_in_checkpoints():
  names = _experiment().checkpoint_metadata.names
  assert names['tag.first.w'] == 'tag/tiny/first/w/var'
  assert names['words.emb.wm[0]'] == 'words/tiny/emb/var_0/var'


@pytest.mark.slow
def test_a_run_is_killed_and_continues(tmp_path):
  (tmp_path / 'my_tasks.py').write_text(MODULE)
  folder = tmp_path / 'run'

  def flags(steps):
    override = f'--model_params_override=train.max_steps : {steps}'
    modules = '--import_modules=my_tasks'
    return trainer_runs.flags(folder, modules, override, exp='my_tasks.Both')

  path = dict(PYTHONPATH=f'{trainer_runs.ROOT}:{tmp_path}')
  with trainer_runs.start(flags(10_000), output=tmp_path, **path) as started:
    started.wait_until(lambda: trainer_runs.steps_saved(folder))
    started.process.kill()
    started.process.wait()
  [*_, saved] = trainer_runs.steps_saved(folder)
  last = saved + 4
  done = trainer_runs.forked(*flags(last), **path)
  assert done.returncode == 0, done.stdout + done.stderr
  assert f'continues from the checkpoint of step {saved}' in done.stdout
  assert trainer_runs.steps_saved(folder)[-1] == last
  metrics = trainer_runs.metrics(folder)
  for step, draw in enumerate(np.random.default_rng(0).random(last), 1):
    # Both tasks have the same weight.
    trained, other = ('letters', 'wider')[:: 1 if draw < 0.5 else -1]
    loss = metrics[step, 'train', 'loss']
    assert metrics[step, 'train', f'{trained}/loss'] == loss
    assert (step, 'train', f'{other}/loss') not in metrics
  for task in ('letters', 'wider'):
    assert (last, f'eval_Dev_{task}', f'{task}/log_pplx') in metrics
