"""A Lingvo experiment as a `BaseExperiment`: the trainer sees no difference."""

import functools
from typing import Any

from absl import logging

from adaptors import (
  lingvo_eval_input,
  lingvo_input,
  lingvo_params,
  lingvo_runtime,
)
from adaptors.translate import task as task_translation
from pax_compat import base_experiment, errors, experiment_sources
from pax_compat import config as config_lib

_TRAIN = 'Train'
# What Lingvo's own trainer evaluates, where a schedule does not say.
_HELD_OUT = ('Dev', 'Test')


class LingvoExperiment(base_experiment.BaseExperiment):
  """A class of Lingvo's registry: its task translated, its inputs adapted."""

  def __init__(
    self,
    *,
    name: str,
    model_params: Any,
    options: experiment_sources.SourceOptions,
  ):
    """Reads the experiment's Params; nothing is instantiated.

    Args:
      name: its name in the registry.
      model_params: an instance of the registered class.
      options: what the command line says, overrides of Params among it.

    Raises:
      UserError: it is a kind of experiment that is not supported, or an
        override names an unknown field.
    """
    if options.translation == 'bridge':
      raise errors.UserError(
        '--translation=bridge is not supported; expected auto or native'
      )
    self._name = name
    self._model_params = model_params
    self._override = options.model_params_override
    if self._override:
      logging.info('%s: overrides: %s', name, self._override)
    self._model = self._params_of(_TRAIN)
    if 'task' not in self._model:
      raise errors.UserError(
        f'{name} is a multi-task model; expected a model of a single task,'
        ' registered with RegisterSingleTaskModel'
      )

  @functools.cached_property
  def translated(self) -> task_translation.TranslatedTask:
    """The task in JAX, with the map of its variables."""
    params = self._model.task.Copy()
    if not params.input:
      params.input = self._model.input
    return task_translation.translate_task(params, self._name)

  def task(self) -> config_lib.Config:
    """Returns the translated task.

    Raises:
      UserError: it cannot be translated; the message lists every reason.
    """
    config = self.translated.config.clone()
    every, during = self._evaluations()
    return config.set(
      train=config.train.set(
        eval_interval_steps=every, eval_during_training=during
      )
    )

  def datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the registered class defines, adapted."""
    configs = [
      lingvo_input.LingvoInputAdaptor.config(
        name=_TRAIN,
        input=self._model.input,
        is_training=True,
        # The legacy run had this seed too; `resume_at` sees to restarts.
        allow_fixed_file_random_seed=True,
      )
    ]
    for name in self._held_out_names():
      params = self._params_of(name).input
      configs.append(
        lingvo_eval_input.LingvoEvalAdaptor.config(
          name=name,
          input=params,
          batch_size=_eval_batch_size(name, params),
          reset_for_eval=True,
        )
      )
    return configs

  def dumps(self) -> dict[str, str]:
    """Returns Lingvo's own text of the model's Params, overrides included."""
    return {'lingvo_params.txt': self._model.ToText() + '\n'}

  def _params_of(self, dataset: str):
    """Returns the model's Params with one dataset, overrides applied."""
    params = self._model_params.Model()
    params.input = self._model_params.GetDatasetParams(dataset)
    if self._override:
      before = params.Copy()
      lingvo_params.apply_override(params, self._override)
      _agree(before, params)
    return params

  def _held_out_names(self) -> list[str]:
    """Returns the names of the held-out datasets that the class defines."""
    base = lingvo_runtime.module('lingvo.core.base_model_params')
    defined = self._model_params.GetAllDatasetParams()
    scheduled = [n for n in self._schedule.eval_names if n != _TRAIN]
    names = list(dict.fromkeys([*scheduled, *_HELD_OUT]))
    if defined is not None:
      return [n for n in names if n in defined]
    default = base.SingleTaskModelParams
    return [
      n
      for n in names
      if getattr(type(self._model_params), n, None)
      is not getattr(default, n, None)
    ]

  def _evaluations(self) -> tuple[int, tuple[str, ...]]:
    """Returns how often which datasets are evaluated while training."""
    schedule = self._schedule
    during = tuple(n for n in schedule.eval_names if n != _TRAIN)
    logging.info(
      '%s: %s every %d steps, and at the end %s',
      self._name,
      f'evaluates {", ".join(during)}' if during else 'evaluates nothing',
      schedule.interval_steps,
      ', '.join(self._held_out_names()) or 'nothing',
    )
    return schedule.interval_steps, during

  @functools.cached_property
  def _schedule(self) -> '_Schedule':
    return _Schedule(self._model_params.ProgramSchedule(), self._name)


class _Schedule:
  """What a Lingvo program schedule says about evaluations.

  Attributes:
    interval_steps: train steps between evaluations.
    eval_names: the datasets that are evaluated.
  """

  def __init__(self, params, name: str):
    train = params.train_program
    if train is None:
      raise errors.UserError(f'{name}: its ProgramSchedule() does not train')
    executions = params.train_executions_per_eval or 1
    self.interval_steps = train.steps_per_loop * executions
    self.eval_names = tuple(
      dict.fromkeys(
        p.dataset_name for p in params.eval_programs or () if _evaluates(p)
      )
    )


def _evaluates(program_params) -> bool:
  return 'Eval' in program_params.cls.__name__


def _agree(before, params):
  """Makes the model's and its task's `train` say the same after an override.

  Lingvo copies fields of `task.train` to the model's `train` when the Params
  are made, so that an override of one of them leaves the other as it was. Here
  the one that was overridden counts; where both were, the model's.
  """
  model, task = params.train, params.task.train
  for name, value in before.train.IterParams():
    if name not in task:
      continue
    if str(model.Get(name)) != str(value):
      task.Set(**{name: model.Get(name)})
    elif str(task.Get(name)) != str(before.task.train.Get(name)):
      model.Set(**{name: task.Get(name)})


def _eval_batch_size(name: str, params) -> int:
  """Returns how many examples of this host make a batch of an evaluation.

  Of several buckets the one with the fewest examples decides, since its batches
  are the longest: it fits into memory for all of them.
  """
  limits = (
    params.Get('bucket_batch_limit')
    if ('bucket_batch_limit' in params)
    else None
  )
  size = min(limits) if limits else params.Get('batch_size')
  if not size:
    raise errors.UserError(
      f'{name}().batch_size is {size!r}; expected the number of examples in a'
      ' batch'
    )
  return size
