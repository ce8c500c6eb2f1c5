"""A Lingvo experiment with several tasks as a `BaseExperiment`."""

import functools
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge import multi_task as bridged_tasks
from adaptors.bridge import shared_model
from adaptors.checkpoints import task_metadata
from adaptors.experiments import lingvo_experiment
from adaptors.translate.tasks import multi_task
from adaptors.translate.training import program_schedule
from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.inputs import multi_task_input
from pax_compat.tasks import task_schedules

_TRAIN = program_schedule.TRAIN
# Without a program schedule, evaluations run only at the end.
_NO_SCHEDULE = program_schedule.ProgramSchedule(interval_steps=1, evaluated={})


class LingvoMultiTaskExperiment(lingvo_experiment.LingvoExperiment):
  """A class of Lingvo's registry with several tasks, which are translated.

  A dataset `Dev` becomes one dataset per task, `Dev_<task>`.

  If the class has program schedules, a task is drawn for as many steps as its
  program schedule trains at a time, as in Lingvo's executor. Otherwise a task
  is drawn for each step, as in Lingvo's trainer.
  """

  MODEL = 'MultiTaskModel'
  REGISTERED = 'MultiTaskModelParams'

  @functools.cached_property
  def translated(self):
    """All tasks as one task in JAX, with the mapping of their variables."""
    return self._translated.task

  def task_params(self):
    """Not supported: there are several tasks.

    Raises:
      UserError: always.
    """
    raise errors.UserError(
      f'{self._name} has the tasks {", ".join(self._tasks)}; expected a model'
      ' of a single task'
    )

  def tasks(self) -> dict[str, Any]:
    found = {}
    for task, template in sorted(self._model.task_params.IterParams()):
      found[task] = template.Copy()
      found[task].input = self._model.input.Get(task).Copy()
    return found

  @functools.cached_property
  def checkpoint_metadata(self):
    """Metadata that the names in its checkpoints depend on.

    Raises:
      UserError: checkpoints of this kind of tasks are not supported.
    """
    return task_metadata.of_several(self._model, self.translated)

  def datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the registered class defines, adapted."""
    train = multi_task_input.MultiTaskInput.config(
      name=_TRAIN,
      inputs={
        task: self._training(f'{_TRAIN}_{task}', self._model.input.Get(task))
        for task in self._tasks
      },
      schedule=self._task_schedule(),
      steps_per_draw=self._schedule.interval_steps,
      input_random_seed=self._model.random_seed,
    )
    held_out = self._held_out_names()
    return [train, *(one for name in held_out for one in self._held_out(name))]

  def _task_trains(self):
    return [self._model.task_params.Get(task).train for task in self._tasks]

  @property
  def _names_metadata(self):
    return self.checkpoint_metadata

  def _held_out(self, name, *, decodes=False):
    configs = []
    model = self._params_of(name, decodes=decodes)
    for task, params in sorted(model.input.IterParams()):
      own = f'{name}_{task}'
      settings = model.task_params.Get(task).eval
      samples = lingvo_experiment.samples_of(settings, params, decodes=decodes)
      data = self._adapted(name, params, samples, decodes=decodes)
      data.set(name=own)
      configs.append(
        multi_task_input.TaskInput.config(name=own, task=task, input=data)
      )
    return configs

  def _task_schedule(self) -> config_lib.Config:
    schedule = self._translated.schedule.clone()
    _set_turns(schedule, self._schedule.interval_steps)
    return schedule

  def _evaluated_during_training(self):
    return tuple(
      one.name
      for name in super()._evaluated_during_training()
      for one in self._held_out(name)
    )

  def _sync_train_params(self, before, params):
    """Does nothing: Lingvo does not copy Params of tasks to the model."""

  def _is_known(self, model):
    return shared_model.is_lingvos(model)

  def _check_model(self, params):
    super()._check_model(params)
    if len(list(params.task_params.IterParams())) < 2:
      raise errors.UserError(
        f'{self._name}: task_params has fewer than two tasks; expected several,'
        ' or a class registered with RegisterSingleTaskModel'
      )

  @property
  def _tasks(self) -> list[str]:
    return sorted(task for task, _ in self._model.task_params.IterParams())

  @functools.cached_property
  def _translated(self) -> multi_task.TranslatedTasks:
    inputs = sorted(task for task, _ in self._model.input.IterParams())
    if inputs != self._tasks:
      raise errors.UserError(
        f'{self._name}: {_TRAIN}() has inputs of {", ".join(inputs) or "none"};'
        f' expected one for each task: {", ".join(self._tasks)}'
      )
    mode = self._options.translation
    return bridged_tasks.translate_model(self._model, self._name, mode)

  @functools.cached_property
  def _schedule(self) -> program_schedule.ProgramSchedule:
    try:
      params = self._model_params.ProgramSchedule()
    except NotImplementedError:
      params = None
    if params is None:
      return _NO_SCHEDULE
    container = lingvo_runtime.module('lingvo.core.program')
    if params.cls is not container.MultiTaskProgramSchedule:
      raise errors.UserError(
        f'{self._name}: ProgramSchedule() is a {params.cls.__name__}; expected'
        ' a MultiTaskProgramSchedule'
      )
    found = {
      task: program_schedule.read(own, f'{self._name}, task {task}')
      for task, own in params.program_schedule_dict.items()
    }
    if sorted(found) != self._tasks:
      raise errors.UserError(
        f'{self._name}: ProgramSchedule() has the tasks'
        f' {", ".join(sorted(found))}; expected {", ".join(self._tasks)}'
      )
    first, *others = found.values()
    if any(other != first for other in others):
      raise errors.UserError(
        f'{self._name}: the program schedules of {", ".join(found)} differ,'
        ' which is not supported'
      )
    logging.info(
      '%s: a task is drawn for %d steps', self._name, first.interval_steps
    )
    return first


def _set_turns(schedule: config_lib.Config, steps: int):
  """Sets the number of steps of a turn, in schedules within others, too."""
  if schedule.cls is task_schedules.TasksInTurn:
    schedule.set(steps_each=steps)
  elif schedule.cls is task_schedules.TasksInPhases:
    for phase, _ in schedule.phases:
      _set_turns(phase, steps)
