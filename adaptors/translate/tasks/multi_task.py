"""Translates Lingvo's `MultiTaskModel`: several tasks, trained in turn."""

import dataclasses
from collections.abc import Callable, Sequence

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.tasks import single as task_translation
from adaptors.translate.tasks.single import TranslatedTask
from adaptors.translate.training import train_params
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, Report, same
from pax_compat import config as config_lib
from pax_compat import errors, layers, learners, tasks_lib
from pax_compat.layer_core.task_scopes import scope_of
from pax_compat.schedules import evaluated

# Fields that the tasks inherit from the model.
_INHERITED = ('dtype', 'fprop_dtype', 'random_seed', 'skip_lp_regularization')
# Fields that must be equal in the model and all tasks.
_AVERAGES = ('ema_decay', 'ema_decay_moving_vars', 'ema_schedule')
# Fields that Lingvo's runners read from the model.
_OF_THE_RUN = (
  'max_steps',
  'save_interval_seconds',
  'save_interval_steps',
  'save_max_to_keep',
  'save_keep_checkpoint_every_n_hours',
  'summary_interval_steps',
)


@dataclasses.dataclass(frozen=True)
class TranslatedTasks:
  """A Lingvo model of several tasks in JAX.

  Attributes:
    task: the task that combines them.
    schedule: config of a `task_schedules.BaseTaskSchedule`.
  """

  task: TranslatedTask
  schedule: config_lib.Config


def translate_model(
  params,
  name: str,
  translate: Callable[..., TranslatedTask] | None = None,
  *,
  ignored: Sequence[str] = (),
  tied: Callable[[dict[str, TranslatedTask]], Sequence] = lambda tasks: (),
) -> TranslatedTasks:
  """Translates the Params of a Lingvo `MultiTaskModel`.

  Args:
    params: the model's Params, whose `input` has one input for each task; they
      are not changed.
    name: of the experiment, for messages.
    translate: translates a task, with the arguments of
      `single.translate_task`, which is the default.
    ignored: fields of the model that the caller reads.
    tied: returns the groups of variables with the same value by the tasks; see
      `layers.MultiTaskModel`.

  Raises:
    UserError: something cannot be translated; the message lists every such
      field with its path, class and value.
  """
  report = Report()
  translate = translate or task_translation.translate_task
  view = ParamsView(params.Copy(), 'model', report)
  for field in ignored:
    view.get(field)
  schedule = _schedule(view)
  train_view = view.group('train')
  train = train_params.of_several_tasks(train_view)
  _read_others(view)
  tasks, problems = {}, []
  for task, template in sorted(view.get('task_params').IterParams()):
    _compare_trains(train_view, task, template)
    own = view.adopt(template, f'task_params.{task}').params
    own.input = params.input.Get(task).Copy()
    scope = f'{task}/' if view.get('task_name_var_scope') else ''
    try:
      tasks[task] = translate(
        own, name, path=f'task_params.{task}', scope=scope
      )
    except errors.UserError as error:
      problems.append(str(error))
      continue
    _check_task(view, task, tasks[task])
  view.finish()
  if report.issues:
    problems.insert(0, task_translation.describe(name, report))
  if problems:
    raise errors.UserError('\n'.join(problems))
  report.log(name)
  joined = _joined(name, tasks, train, report.notes, tied(tasks))
  return TranslatedTasks(joined, schedule)


def _schedule(view: ParamsView) -> config_lib.Config | None:
  """Returns the schedule; by default tasks are sampled by `task_probs`."""
  params, weights = view.get('task_schedule'), view.get('task_probs')
  if params is None:
    scheduler = lingvo_runtime.module('lingvo.core.task_scheduler')
    params = scheduler.ConstantScheduler.Params()
    params.task_probs = sorted(weights.IterParams())
  else:
    for task, weight in weights.IterParams():
      view.report.notes.append(
        f'{view.path}.task_probs.{task} = {weight} has no effect: task_schedule'
        ' is set'
      )
  return registry.translate(
    ParamsView(params, f'{view.path}.task_schedule', view.report)
  )


def _read_others(view: ParamsView):
  view.get('input')  # The experiment reads it.
  for name in _INHERITED:
    view.get(name)
  view.require('task_global_step', False)
  view.ignore('there is one model here', 'share_model_object')
  view.ignore('it describes the origin of the Params', 'model', 'build_data')
  view.ignore("it concerns TensorFlow's programs only", 'cluster')


def _compare_trains(train: ParamsView, task: str, params):
  """Compares the fields that a task's `train` and the model's both have.

  Moving averages must be equal, as in Lingvo. Of the others the model's values
  are used.
  """
  for field in (*_AVERAGES, *_OF_THE_RUN):
    own, whole = params.train.Get(field), train.params.Get(field)
    if same(own, whole):
      continue
    if field in _AVERAGES:
      train.issue(
        field,
        f'it is {whole!r}, and that of task_params.{task} {own!r}; expected'
        ' equal values',
      )
    else:
      train.report.notes.append(
        f'task_params.{task}.train.{field} = {own} has no effect:'
        f' {train.path}.{field} is used, {whole}'
      )


def _check_task(view: ParamsView, task: str, translated: TranslatedTask):
  """Adds issues with fields that one task of several cannot set."""
  field, config = f'task_params.{task}', translated.config
  if translated.early_stop is not None:
    view.issue(f'{field}.train.early_stop', 'only the model can stop early')
  if evaluated.configs_within(config.train.learner):
    view.issue(
      f'{field}.train',
      'a schedule that depends on evaluations is not translated for one task of'
      ' several',
    )
  if config.vn.vn_scale:
    view.issue(f'{field}.vn', 'it is not translated for one task of several')
  if config.model.ici_mesh_shape is not None:
    view.issue(
      f'{field}.device_mesh', 'it is not translated for one task of several'
    )


def _joined(
  name: str,
  tasks: dict[str, TranslatedTask],
  train,
  notes: list[str],
  tied: Sequence[Sequence[str]],
) -> TranslatedTask:
  """Returns the task that combines several."""
  learner = learners.MultiTaskLearner.config(
    learners={
      task: one.config.train.learner.clone().set(name=f'learner of {task}')
      for task, one in tasks.items()
    },
    tied=tied,
  )
  # Steps train different tasks, whose summaries have different names.
  train.set(learner=learner, summary_accumulate_interval_steps=1)
  variables = [
    one.variables.under(task, scope_of(task)) for task, one in tasks.items()
  ]
  return TranslatedTask(
    config=tasks_lib.SingleTask.config(
      name=name,
      model=layers.MultiTaskModel.config(
        tasks={task: one.config.model for task, one in tasks.items()},
        tied=tied,
      ),
      train=train,
    ),
    variables=sum(variables, VariableMap()),
    notes=(*notes, *(note for one in tasks.values() for note in one.notes)),
  )
