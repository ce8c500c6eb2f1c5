"""Translates a task's `train` Params."""

import dataclasses
import fractions
import math
import re

from adaptors.equivalents import lingvo_early_stopping, lingvo_schedules
from adaptors.translate.training import learner_fields, learners, schedules
from adaptors.translate.training.variable_layout import TaskFacts
from adaptors.translate.view import ParamsView, class_path
from pax_compat import learners as pax_learners
from pax_compat import tasks_lib
from pax_compat.base_layer import NON_TRAINABLE
from pax_compat.config import Config
from pax_compat.learners import variable_names

_NO_LIMIT = 1_000_000
_EMA_SCHEDULE = 'lingvo.core.schedule.EmaDecaySchedule'


@dataclasses.dataclass(frozen=True)
class TranslatedTrain:
  """The training settings of a task.

  Attributes:
    config: of `tasks_lib.Train`.
    early_stop: config of the early stopping; None for none. The caller sets its
      `split`.
    early_stop_job: Lingvo's name of the evaluation whose metric it reads, such
      as `eval_dev`; '' for none.
  """

  config: Config
  early_stop: Config | None = None
  early_stop_job: str = ''


def train(view: ParamsView, facts: TaskFacts) -> TranslatedTrain | None:
  """Translates a task's `train` Params.

  Args:
    view: the Params; fields that the task's class adds must have been read.
    facts: of the task.

  Returns:
    The settings; None after an issue.
  """
  _ignore_others(view)
  batches = batches_per_step(view, facts.defers_steps)
  early_stop, job = _early_stop(view, batches)
  found = learner_fields.read(view)
  decay = _ema_decay(view)
  config = _intervals(view, batches)
  view.finish()
  # The names of variables, which take long, are read last.
  learner = found and learners.combined(view, found, facts)
  if learner is None:
    return None
  if decay:
    learner = _with_ema(view, learner, decay, facts)
    config.set(eval_use_ema_states=True, decode_use_ema_states=True)
  return TranslatedTrain(config.set(learner=learner), early_stop, job)


def of_several_tasks(view: ParamsView) -> Config:
  """Translates the `train` Params of a model of several tasks.

  The caller compares its moving averages with those of the tasks.

  Args:
    view: the Params.

  Returns:
    The config of `tasks_lib.Train`, without a learner.
  """
  _ignore_others(view)
  if _early_stop(view, fractions.Fraction(1))[0] is not None:
    view.issue('early_stop', 'it is not translated for several tasks')
  view.require('ema_schedule', None)
  config = _intervals(view, fractions.Fraction(1))
  averages = _ema_decay(view) > 0
  view.finish()
  return config.set(
    eval_use_ema_states=averages, decode_use_ema_states=averages
  )


def _ignore_others(view: ParamsView):
  for name in ('init_from_checkpoint_rules', 'init_from_checkpoint_override'):
    view.get(name)  # The experiment reads them when a run starts.
  view.ignore('all processes start together', 'start_up_delay_steps')
  view.ignore(
    'there are no loops on the device',
    'tpu_steps_per_loop',
    'tpu_device_order_mode',
    'tpu_computation_shape',
    'enqueue_max_steps',
  )
  view.ignore(
    'checkpoints are always asynchronous, finite or not',
    'async_checkpointing',
    'checkpoint_finite_check',
  )
  view.ignore(
    'summaries of single examples are not written', 'keep_per_example_loss'
  )


def _intervals(view: ParamsView, batches: fractions.Fraction) -> Config:
  """Returns the config with the intervals in steps or seconds.

  Args:
    view: the `train` Params.
    batches: batches per increment of Lingvo's global step.
  """

  def scaled(name: str) -> int | None:
    steps = view.get(name)
    return steps and max(1, math.ceil(steps * batches))

  steps = scaled('save_interval_steps')
  seconds = view.get('save_interval_seconds')
  hours = view.get('save_keep_checkpoint_every_n_hours')
  return tasks_lib.Train.config(
    num_train_steps=scaled('max_steps'),
    save_interval_steps=steps,
    # Lingvo saves by time only if it does not save by steps.
    save_interval_seconds=None if steps else seconds,
    save_max_to_keep=view.get('save_max_to_keep') or _NO_LIMIT,
    save_keep_interval_duration=f'{round(hours * 3600)}s' if hours else None,
    summary_interval_steps=scaled('summary_interval_steps'),
    # The program schedule lists the evaluated datasets.
    eval_skip_train=True,
  )


def batches_per_step(view: ParamsView, defers: bool) -> fractions.Fraction:
  """Returns the number of batches per increment of Lingvo's global step.

  Steps here are batches. Lingvo's are too, except with optimizers that
  accumulate gradients, whose updates are counted as additional steps.

  Args:
    view: a task's `train`.
    defers: whether the task then counts updates only.
  """
  counts = learners.all_micro_batches(view.params)
  count = max(counts)
  if len(counts) > 1:
    view.issue('learner', 'num_micro_batches must be equal in all learners')
  if defers:
    return fractions.Fraction(count)
  return fractions.Fraction(count, count + 1 if count > 1 else 1)


def _early_stop(
  view: ParamsView, batches: fractions.Fraction
) -> tuple[Config | None, str]:
  """Returns the config of the early stopping and Lingvo's evaluation.

  Args:
    view: the `train` Params.
    batches: batches per increment of Lingvo's global step.
  """
  if view.get('early_stop') is None or not view.params.early_stop.window:
    view.ignore('early_stop.window is 0', 'early_stop')
    return None, ''
  stop = ParamsView(
    view.params.early_stop, f'{view.path}.early_stop', view.report
  )
  history = stop.group('metric_history')
  stop.ignore('it concerns logs only', 'verbose', 'logging_interval')
  job, metric = schedules.metric_of_history(history)
  config = lingvo_early_stopping.EarlyStop.config(
    metric=metric,
    minimize=history.get('minimize'),
    tolerance=stop.get('tolerance'),
    window=math.ceil(stop.get('window') * batches),
    min_steps=math.ceil(stop.get('min_steps') * batches),
  )
  for part in (history, stop):
    part.finish()
  return config, job


def _ema_decay(view: ParamsView) -> float:
  """Returns the decay of the moving average of the weights; 0 for none."""
  decay, schedule = view.get('ema_decay'), view.get('ema_schedule')
  if schedule is not None:
    # This is the default schedule of Lingvo's moving average.
    if class_path(schedule.cls) != _EMA_SCHEDULE:
      view.issue(
        'ema_schedule',
        f'{class_path(schedule.cls)} is not translated, only {_EMA_SCHEDULE}',
      )
      return 0.0
    if decay > 0:
      view.report.notes.append(
        f'{view.path}.ema_decay = {decay} has no effect: ema_schedule is set'
      )
    decay = schedule.ema_decay
  if decay <= 0:
    view.ignore('ema_decay is 0', 'ema_decay_moving_vars')
    return 0.0
  if decay >= 1:
    view.issue('ema_decay', f'{decay} is not below 1')
  view.get('ema_decay_moving_vars')
  return float(decay)


def _with_ema(
  view: ParamsView, learner: Config, decay: float, facts: TaskFacts
) -> Config:
  """Returns a learner with Lingvo's moving average of the weights.

  Lingvo averages after each batch, whether it updates weights or not. The decay
  depends on the global step, which an optimizer may have increased already.
  """
  learner.optimizer.set(ema_decay=decay)
  learner.set(ema_after_update=True, ema_every_step=True)
  count = max(learners.all_micro_batches(view.params))
  if count > 1:
    if learner.cls is pax_learners.MultiOptimizerLearner:
      view.issue(
        'ema_decay',
        'it is not translated with several optimizers with num_micro_batches',
      )
    learner.ema_step = lingvo_schedules.StepOfMicroBatch.config(
      num_micro_batches=count, counts_updates_only=facts.defers_steps
    )
  moving = bool(view.params.ema_decay_moving_vars)
  averaged = facts.averaged_variables(moving)
  if averaged:
    names = [variable_names.full_name(v, NON_TRAINABLE) for v in averaged]
    learner.ema_variables = sorted(map(re.escape, names))
  return learner
