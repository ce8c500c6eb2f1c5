"""A Lingvo experiment as a `BaseExperiment`: the trainer sees no difference."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from adaptors.checkpoints import files, mapping, run_start, task_metadata
from adaptors.lingvo_input import eval_adaptors, input_adaptor
from adaptors.lingvo_input.checks import generator_kinds
from adaptors.lingvo_registry.options import LingvoOptions
from adaptors.params import param_overrides, params_trees
from adaptors.translate import registry
from adaptors.translate.tasks import single as task_translation
from adaptors.translate.training import program_schedule
from pax_compat import base_experiment, errors
from pax_compat import config as config_lib

_TRAIN = program_schedule.TRAIN
# What Lingvo's own trainer evaluates, where a schedule does not say.
_HELD_OUT = ('Dev', 'Test')


class LingvoExperiment(base_experiment.BaseExperiment):
  """A class of Lingvo's registry: its task in JAX, its inputs adapted."""

  # Classes of Lingvo: of the model's Params, and of what is registered.
  MODEL = 'SingleTaskModel'
  REGISTERED = 'SingleTaskModelParams'

  def __init__(
    self,
    *,
    name: str,
    model_params: Any,
    options: LingvoOptions,
  ):
    """Reads the experiment's Params; nothing is instantiated.

    Args:
      name: its name in the registry.
      model_params: an instance of the registered class.
      options: of the command line, with overrides of Params.

    Raises:
      UserError: it is a kind of experiment that is not supported, or an
        override names an unknown field.
    """
    self._name = name
    self._model_params = model_params
    self._override = options.model_params_override
    self._options = options
    if self._override:
      logging.info('%s: overrides: %s', name, self._override)
    with self._of_users('Model'):
      model = model_params.Model()
    self._check_model(model)
    self._model = self._params_of(_TRAIN)

  @functools.cached_property
  def translated(self) -> task_translation.TranslatedTask:
    """The task in JAX, with the map of its variables."""
    return self.translate(self.task_params())

  def translate(self, params: Any) -> task_translation.TranslatedTask:
    """Returns a task in JAX, as the command line says: translated or bridged.

    Args:
      params: of the task, as of `task_params`; they may be changed.
    """
    return bridge_task.translate(params, self._name, self._options.translation)

  @property
  def registered(self) -> Any:
    """The instance of the registered class."""
    return self._model_params

  def model_params(self) -> Any:
    """Returns a copy of the model's Params, with its training input."""
    return self._model.Copy()

  def task_params(self) -> Any:
    """Returns a copy of the task's Params, with its training input."""
    params = self._model.task.Copy()
    if not params.input:
      params.input = self._model.input.Copy()
    return params

  def task(self) -> config_lib.Config:
    """Returns the task in JAX, translated or bridged.

    Raises:
      UserError: neither is possible; the message lists every reason.
    """
    config = self.translated.config.clone()
    schedule = self._schedule
    config.train.set(
      eval_interval_steps=schedule.interval_steps,
      eval_during_training=self._evaluated_in_turn(),
      # Of the training data, the batch that comes next is evaluated.
      eval_skip_train=_TRAIN not in schedule.evaluated,
      decode_interval_steps=schedule.decode_interval_steps or None,
      decode_start_after_n_steps=schedule.decode_start_steps,
    )
    if self.translated.early_stop is not None:
      split = f'eval_{self._early_stop_dataset}'
      stop = self.translated.early_stop.clone().set(split=split)
      config.set(early_stopping_fn=stop)
    return config

  def start(self) -> base_experiment.Start | None:
    """Returns the newest checkpoint of the Lingvo run that is to go on."""
    if not self._options.lingvo_logdir:
      return None
    return run_start.Start(
      files.newest(self._options.lingvo_logdir),
      self.checkpoint_metadata,
      allow_missing=self._options.allow_missing,
      allow_unused=self._options.allow_unused,
    )

  @functools.cached_property
  def checkpoint_metadata(self) -> mapping.CheckpointMetadata:
    """What the names in its checkpoints depend on.

    Raises:
      UserError: checkpoints of such a task are not supported.
    """
    return task_metadata.of(self.task_params(), self.translated)

  def datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the registered class defines, adapted."""
    return [
      self._training(_TRAIN, self._model.input),
      *(one for name in self._held_out_names() for one in self._held_out(name)),
    ]

  def decode_datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the program schedule decodes, adapted."""
    names = self._schedule.decoded
    return [one for name in names for one in self._held_out(name)]

  def _training(self, name: str, params) -> config_lib.Config:
    """Returns a training input, adapted."""
    return input_adaptor.LingvoInputAdaptor.config(
      name=name,
      input=params,
      is_training=True,
      # The legacy run had this seed too; `resume_at` sees to restarts.
      allow_fixed_file_random_seed=True,
      replay=self._options.lingvo_input_replay,
    )

  def _held_out(self, name: str) -> list[config_lib.Config]:
    """Returns what a dataset to evaluate becomes: here one, of its name."""
    return [self._adapted(name, self._params_of(name).input)]

  def _adapted(self, name: str, params) -> config_lib.Config:
    """Returns a dataset to evaluate: all of it, if it has an end."""
    batches = self._schedule.evaluated.get(name)
    if batches and not _has_end(params):
      return input_adaptor.LingvoInputAdaptor.config(
        name=name,
        input=params,
        eval_loop_num_batches=batches,
        cluster_do_eval=True,  # As in Lingvo's own evaluations.
      )
    return eval_adaptors.LingvoEvalAdaptor.config(
      name=name,
      input=params,
      batch_size=_eval_batch_size(name, params),
      reset_for_eval=True,
      cluster_do_eval=True,
    )

  def dumps(self) -> dict[str, str]:
    """Returns Lingvo's own text of the model's Params, overrides included."""
    return {'lingvo_params.txt': self._model.ToText() + '\n'}

  def _params_of(self, dataset: str):
    """Returns the model's Params with one dataset, overrides applied."""
    with self._of_users('Model'):
      params = self._model_params.Model()
    with self._of_users(dataset):
      params.input = self._model_params.GetDatasetParams(dataset)
    if params.input is None:
      raise errors.UserError(
        f'{self._name}.{dataset}() returns None; expected Params of an input'
        ' generator'
      )
    if self._override:
      before = params.Copy()
      param_overrides.apply_override(params, self._override)
      self._agree(before, params)
    return params

  def _held_out_names(self) -> list[str]:
    """Returns the names of the held-out datasets that the class defines."""
    base = lingvo_runtime.module('lingvo.core.base_model_params')
    defined = self._model_params.GetAllDatasetParams()
    scheduled = [n for n in self._schedule.evaluated if n != _TRAIN]
    names = list(dict.fromkeys([*scheduled, *_HELD_OUT]))
    if defined is not None:
      return [n for n in names if n in defined]
    default = getattr(base, self.REGISTERED)
    return [
      n
      for n in names
      if getattr(type(self._model_params), n, None)
      is not getattr(default, n, None)
    ]

  def _evaluated_in_turn(self) -> tuple[str, ...]:
    """Returns the datasets that are evaluated while training."""
    schedule = self._schedule
    during = [n for n in schedule.evaluated if n != _TRAIN]
    stopping = self._early_stop_dataset
    if stopping and stopping not in during:
      during.append(stopping)
    logging.info(
      '%s: %s every %d steps, and at the end %s',
      self._name,
      f'evaluates {", ".join(during)}' if during else 'evaluates nothing',
      schedule.interval_steps,
      ', '.join(self._held_out_names()) or 'nothing',
    )
    return tuple(during)

  @functools.cached_property
  def _early_stop_dataset(self) -> str:
    """The dataset whose evaluation may end a run; '' where none may.

    Lingvo's evaluation jobs have the names of datasets in lower case.
    """
    job = self.translated.early_stop_job
    names = self._held_out_names()
    for name in names:
      if f'eval_{name.lower()}' == job:
        return name
    if job:
      raise errors.UserError(
        f'{self._name}: task.train.early_stop.metric_history.jobname is'
        f' {job!r}, and the held-out datasets are {", ".join(names) or "none"};'
        " expected 'eval_' and the name of one of them, in lower case"
      )
    return ''

  def _check_model(self, params):
    """Raises a UserError unless it is Lingvo's model of that kind, as it is."""
    base = getattr(lingvo_runtime.module('lingvo.core.base_model'), self.MODEL)
    if not issubclass(params.cls, base):
      raise errors.UserError(
        f'{self._name} is a {params.cls.__name__}, of what is registered as a'
        f' {self.REGISTERED}; expected a {self.MODEL}'
      )
    for cls in params.cls.__mro__[: params.cls.__mro__.index(base)]:
      if registry.overrides(cls):
        changed = ', '.join(sorted(registry.overrides(cls)))
        raise errors.UserError(
          f'{self._name}: its model {cls.__module__}.{cls.__qualname__}'
          f' overrides {changed}; expected {self.MODEL} as it is'
        )

  def _agree(self, before, params):
    """Makes the model's and its task's `train` say the same after an override.

    Lingvo copies fields of `task.train` to the model's `train` when the Params
    are made, so that an override of one of them leaves the other as it was.
    Here the one that was overridden counts; where both were, the model's.
    """
    model, task = params.train, params.task.train
    for name, value in before.train.IterParams():
      if name not in task:
        continue
      if str(model.Get(name)) != str(value):
        task.Set(**{name: model.Get(name)})
      elif str(task.Get(name)) != str(before.task.train.Get(name)):
        model.Set(**{name: task.Get(name)})

  @functools.cached_property
  def _schedule(self) -> program_schedule.ProgramSchedule:
    with self._of_users('ProgramSchedule'):
      schedule = self._model_params.ProgramSchedule()
    return program_schedule.read(schedule, self._name)

  @contextlib.contextmanager
  def _of_users(self, method: str) -> Iterator[None]:
    """Says where a method of the registered class fails, such as at a typo."""
    try:
      yield
    except errors.UserError:
      raise
    except Exception as e:
      place = errors.place_in_users_code(e) or errors.place_of(e)
      raise errors.UserError(
        f'{self._name}.{method}() fails: {errors.one_line(e)} ({place})'
      ) from e


def _has_end(params) -> bool:
  """Whether an input reads files or a tf.data set, and not endless examples."""
  return 'repeat_count' in params or generator_kinds.is_tf_data(params)


def _eval_batch_size(name: str, params) -> int:
  """Returns how many examples of this host make a batch of an evaluation.

  Of several buckets the one with the fewest examples decides, since its batches
  are the longest: it fits into memory for all of them.
  """
  limits = params_trees.get(params, 'bucket_batch_limit')
  size = min(limits) if limits else params.Get('batch_size')
  if not size:
    raise errors.UserError(
      f'{name}().batch_size is {size!r}; expected the number of examples in a'
      ' batch'
    )
  return size
