"""A Lingvo experiment as a `BaseExperiment`."""

import contextlib
import functools
from typing import Any, Self

from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from adaptors.checkpoints import (
  files,
  init_rules,
  mapping,
  run_start,
  task_metadata,
)
from adaptors.lingvo_input import eval_adaptors, input_adaptor
from adaptors.lingvo_input.checks import generator_kinds
from adaptors.lingvo_registry import (
  checkout_files,
  differing_classes,
  mounts,
  user_errors,
)
from adaptors.lingvo_registry.options import LingvoOptions
from adaptors.params import param_overrides, params_trees, shrinking
from adaptors.translate import registry
from adaptors.translate.tasks import single as task_translation
from adaptors.translate.training import program_schedule
from pax_compat import base_experiment, errors
from pax_compat import config as config_lib
from pax_compat.schedules import evaluated

_TRAIN = program_schedule.TRAIN
# The datasets that Lingvo's trainer evaluates without a schedule.
_HELD_OUT = ('Dev', 'Test')


class LingvoExperiment(base_experiment.BaseExperiment):
  """A class of Lingvo's registry: its task in JAX, its inputs adapted."""

  # Names of Lingvo classes: the model, and the base of the registered class.
  MODEL = 'SingleTaskModel'
  REGISTERED = 'SingleTaskModelParams'

  def __init__(
    self,
    *,
    name: str,
    model_params: Any,
    options: LingvoOptions,
    sizes: shrinking.Sizes | None = None,
  ):
    """Reads the experiment's Params without instantiating them.

    Args:
      name: the name in the registry.
      model_params: an instance of the registered class.
      options: the options of the command line.
      sizes: to reduce the model to; None for its full size.

    Raises:
      UserError: this kind of experiment is not supported, or an override names
        an unknown field.
    """
    self._name = name
    self._model_params = model_params
    self._override = options.model_params_override
    self._options = options
    self._sizes = sizes
    if self._override:
      logging.info('%s: overrides: %s', name, self._override)
    with self._user_errors('Model'):
      model = model_params.Model()
    self._check_model(model)
    self._model = self._params_of(_TRAIN)
    for text in differing_classes.described(self._model, mounts.checkout()):
      logging.warning('%s: %s', name, text)

  @functools.cached_property
  def route(self) -> bridge_task.Route:
    """How the task runs here: translated or bridged (`--translation`)."""
    return bridge_task.route(
      self.task_params(), self._name, self._options.translation
    )

  @functools.cached_property
  def translated(self) -> task_translation.TranslatedTask:
    """The task in JAX, with the mapping of its variables."""
    return self.route.translated

  def translate(self, params: Any) -> task_translation.TranslatedTask:
    """Returns another task in JAX, translated or bridged (`--translation`).

    Args:
      params: Params of the task, see `task_params`. They may be changed.
    """
    return bridge_task.translate(params, self._name, self._options.translation)

  def reduced(self, sizes: shrinking.Sizes) -> Self:
    """Returns a copy of this experiment with a small model and small batches.

    Args:
      sizes: upper limits of its sizes.
    """
    return type(self)(
      name=self._name,
      model_params=self._model_params,
      options=self._options,
      sizes=sizes,
    )

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

  def tasks(self) -> dict[str, Any]:
    """Returns the Params of each task by its name, with its training input.

    The name of a single task is ''.
    """
    return {'': self.task_params()}

  def task(self) -> config_lib.Config:
    """Returns the task in JAX, translated or bridged.

    Raises:
      UserError: neither is possible; the message lists every reason.
    """
    config = self.translated.config.clone()
    schedule = self._schedule
    config.train.set(
      eval_interval_steps=schedule.interval_steps,
      eval_during_training=self._evaluated_during_training(),
      # On the training data, the next batch is evaluated.
      eval_skip_train=_TRAIN not in schedule.evaluated,
      decode_interval_steps=schedule.decode_interval_steps or None,
      decode_start_after_n_steps=schedule.decode_start_steps,
    )
    for schedule in evaluated.configs_within(config.train.learner):
      schedule.set(split=f'eval_{self._scheduling_datasets[schedule.split]}')
    if self.translated.early_stop is not None:
      split = f'eval_{self._early_stop_dataset}'
      stop = self.translated.early_stop.clone().set(split=split)
      config.set(early_stopping_fn=stop)
    return config

  def start(self) -> base_experiment.Start | None:
    """Returns the newest checkpoint of the Lingvo run to continue.

    Without one, the initial values that `init_from_checkpoint_rules` load.
    """
    if not self._options.lingvo_logdir:
      rules = init_rules.read(self._task_trains(), self._model.train)
      return init_rules.Start(rules, self._names_metadata) if rules else None
    return run_start.Start(
      files.newest(self._options.lingvo_logdir),
      self.checkpoint_metadata,
      allow_missing=self._options.allow_missing,
      allow_unused=self._options.allow_unused,
    )

  def _task_trains(self) -> list[Any]:
    """Returns the `train` Params of the tasks."""
    return [self._model.task.train]

  @functools.cached_property
  def _names_metadata(self) -> mapping.CheckpointMetadata:
    """As `checkpoint_metadata`; of unsupported optimizers without them."""
    try:
      return self.checkpoint_metadata
    except errors.UserError:
      return task_metadata.names_of(self.task_params(), self.translated)

  @functools.cached_property
  def checkpoint_metadata(self) -> mapping.CheckpointMetadata:
    """Metadata that the names in its checkpoints depend on.

    Raises:
      UserError: checkpoints of this kind of task are not supported.
    """
    return task_metadata.of(self.task_params(), self.translated)

  def datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the registered class defines, adapted."""
    return [
      self._training(_TRAIN, self._model.input),
      *(one for name in self._held_out_names() for one in self._held_out(name)),
    ]

  def decode_datasets(self) -> list[config_lib.Config]:
    """Returns the datasets that the program schedule decodes, adapted.

    Without one that decodes, the held-out datasets: training decodes none, and
    `--mode=decode` does as Lingvo's jobs `decoder_dev` and `decoder_test` do.
    """
    names = self._schedule.decoded or self._held_out_names()
    return [one for n in names for one in self._held_out(n, decodes=True)]

  def _training(self, name: str, params) -> config_lib.Config:
    """Returns a training input, adapted."""
    return input_adaptor.LingvoInputAdaptor.config(
      name=name,
      input=params,
      is_training=True,
      # The Lingvo run had this seed too; `resume_at` handles restarts.
      allow_fixed_file_random_seed=True,
      replay=self._options.lingvo_input_replay,
    )

  def _held_out(
    self, name: str, *, decodes: bool = False
  ) -> list[config_lib.Config]:
    """Returns the configs for a dataset to evaluate: here one of its name.

    Args:
      name: of the dataset.
      decodes: whether it is decoded.
    """
    params = self._params_of(name, decodes=decodes)
    samples = samples_of(params.task.eval, params.input, decodes=decodes)
    return [self._adapted(name, params.input, samples, decodes=decodes)]

  def _adapted(
    self, name: str, params, samples: int, *, decodes: bool
  ) -> config_lib.Config:
    """Returns the config of a dataset to evaluate, entirely if it is finite.

    Args:
      name: of the dataset.
      params: of its input.
      samples: how many examples Lingvo reads if it is not; 0 for all.
      decodes: whether it is decoded, which the schedule does not limit.
    """
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
      eval_steps=None if decodes else batches or None,
      eval_samples=samples,
    )

  def dumps(self) -> dict[str, str]:
    """Returns Lingvo's text of the model's Params, overrides included."""
    return {'lingvo_params.txt': self._model.ToText() + '\n'}

  def _params_of(self, dataset: str, *, decodes: bool = False):
    """Returns the model's Params with one dataset, overrides applied.

    Those of a held-out dataset are made as in Lingvo's job that evaluates or
    decodes it: some inputs prepare examples differently there.
    """
    cluster = contextlib.nullcontext()
    if dataset != _TRAIN:
      job = 'decoder' if decodes else 'evaler'
      cluster = lingvo_runtime.cluster(do_eval=True, job=job)
    with cluster:
      with self._user_errors('Model'):
        params = self._model_params.Model()
      with self._user_errors(dataset):
        params.input = self._model_params.GetDatasetParams(dataset)
    if params.input is None:
      raise errors.UserError(
        f'{self._name}.{dataset}() returns None; expected Params of an input'
        ' generator'
      )
    if self._override:
      before = params.Copy()
      param_overrides.apply_override(params, self._override)
      self._sync_train_params(before, params)
    checkout_files.resolve(params, mounts.checkout(), self._name)
    return shrinking.shrink(params, self._sizes) if self._sizes else params

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

  def _evaluated_during_training(self) -> tuple[str, ...]:
    """Returns the datasets that are evaluated while training."""
    schedule = self._schedule
    during = [n for n in schedule.evaluated if n != _TRAIN]
    needed = [self._early_stop_dataset, *self._scheduling_datasets.values()]
    during += [n for n in dict.fromkeys(needed) if n and n not in during]
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
    """The dataset whose evaluation may stop a run early; '' for none."""
    job = self.translated.early_stop_job
    return self._evaluated_by(job, 'early_stop') if job else ''

  @functools.cached_property
  def _scheduling_datasets(self) -> dict[str, str]:
    """The datasets whose evaluations schedules depend on, by Lingvo's name."""
    learner = self.translated.config.train.learner
    jobs = [one.split for one in evaluated.configs_within(learner)]
    return {job: self._evaluated_by(job, 'lr_schedule') for job in jobs}

  def _evaluated_by(self, job: str, field: str) -> str:
    """Returns the dataset of one of Lingvo's evaluation jobs.

    They have the names of datasets in lower case.
    """
    names = self._held_out_names()
    for name in names:
      if f'eval_{name.lower()}' == job:
        return name
    raise errors.UserError(
      f'{self._name}: task.train.{field}.metric_history.jobname is {job!r}, and'
      f' the held-out datasets are {", ".join(names) or "none"}; expected'
      " 'eval_' and the name of one of them, in lower case"
    )

  def _check_model(self, params):
    """Raises a UserError unless the model is Lingvo's, without overrides."""
    base = getattr(lingvo_runtime.module('lingvo.core.base_model'), self.MODEL)
    if not issubclass(params.cls, base):
      raise errors.UserError(
        f'{self._name} is registered as a {self.REGISTERED}, and its model is a'
        f' {params.cls.__name__}; expected a {self.MODEL}'
      )
    for cls in params.cls.__mro__[: params.cls.__mro__.index(base)]:
      if registry.overrides(cls) and not self._is_known(cls):
        changed = ', '.join(sorted(registry.overrides(cls)))
        raise errors.UserError(
          f'{self._name}: its model {cls.__module__}.{cls.__qualname__}'
          f' overrides {changed}; expected an unchanged {self.MODEL}'
        )

  def _is_known(self, model: type) -> bool:
    """Whether a class that derives from the expected model is supported."""
    return False

  def _sync_train_params(self, before, params):
    """Copies overrides between the `train` Params of the model and the task.

    Lingvo copies fields of `task.train` to the model's `train` when the Params
    are made, so that an override changes only one of the two. If both are
    overridden, the model's value is used.
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
    with self._user_errors('ProgramSchedule'):
      schedule = self._model_params.ProgramSchedule()
    return program_schedule.read(schedule, self._name)

  def _user_errors(self, method: str) -> contextlib.AbstractContextManager:
    return user_errors.of_method(f'{self._name}.{method}()')


def samples_of(settings: Any, params: Any, *, decodes: bool) -> int:
  """Returns how many examples Lingvo evaluates, or decodes; 0 for all.

  Args:
    settings: the task's `eval`.
    params: of the input.
    decodes: whether they are decoded.
  """
  field = 'decoder_samples_per_summary' if decodes else None
  samples = settings.samples_per_summary
  if field and settings.Get(field) is not None:
    samples = settings.Get(field)
  own = getattr(params, field or 'eval_samples_per_summary', None)
  if own is not None:
    return own
  known = getattr(params, 'num_samples', 0)
  return min(samples or known, known or samples)


def _has_end(params) -> bool:
  """Whether an input reads files or a tf.data set: it may be finite."""
  return 'repeat_count' in params or generator_kinds.is_tf_data(params)


def _eval_batch_size(name: str, params) -> int:
  """Returns the number of examples per host in a batch of an evaluation.

  With several buckets it is the smallest batch size. It belongs to the longest
  examples, so batches of all buckets fit into memory.
  """
  limits = params_trees.get(params, 'bucket_batch_limit')
  size = min(limits) if limits else params.Get('batch_size')
  if not size:
    raise errors.UserError(
      f'{name}().batch_size is {size!r}; expected the number of examples in a'
      ' batch. If the code of the generator sets its batch sizes, set this to'
      ' one of them: examples are read as before, and evaluated in batches of'
      ' this size'
    )
  return size
