"""Translators of how Lingvo trains: learner, optimizers, schedules."""

from adaptors.translate import registry
from adaptors.translate.registry import translates
from adaptors.translate.view import ParamsView
from pax_compat import learners, optimizers, schedules, tasks_lib
from pax_compat.config import Config

_NO_LIMIT = 1_000_000


def train(view: ParamsView) -> Config | None:
  """Translates a task's `train` Params.

  Args:
    view: the Params; those that a task adds of its own must have been read.

  Returns:
    The config of `tasks_lib.Train`, or None where something has no translation.
  """
  view.ignore(
    'all processes start together',
    'start_up_delay_steps',
  )
  view.ignore(
    'there are no loops on the device',
    'tpu_steps_per_loop',
    'tpu_device_order_mode',
    'tpu_computation_shape',
    'enqueue_max_steps',
  )
  view.ignore(
    'checkpoints are always asynchronous, finite or not, and kept by count',
    'async_checkpointing',
    'checkpoint_finite_check',
    'save_keep_checkpoint_every_n_hours',
  )
  view.ignore(
    'summaries of single examples are not written', 'keep_per_example_loss'
  )
  view.require('vn_std', 0.0)
  view.ignore('vn_std is 0', 'vn_start_step')
  view.require('ema_decay', 0.0)
  view.ignore('ema_decay is 0', 'ema_decay_moving_vars', 'ema_schedule')
  learner = _learner(view)
  steps = view.get('save_interval_steps')
  seconds = view.get('save_interval_seconds')
  config = tasks_lib.Train.config(
    num_train_steps=view.get('max_steps'),
    save_interval_steps=steps,
    # Lingvo saves by time only where it does not save by steps.
    save_interval_seconds=None if steps else seconds,
    save_max_to_keep=view.get('save_max_to_keep') or _NO_LIMIT,
    save_keep_interval_duration=None,
    summary_interval_steps=view.get('summary_interval_steps'),
    # The program schedule says what is evaluated.
    eval_skip_train=True,
  )
  view.finish()
  if learner is None:
    return None
  return config.set(learner=learner)


def _learner(view: ParamsView) -> Config | None:
  """Translates the learner that the old `train` fields describe."""
  view.require('learner', None)
  view.require('l1_regularizer_weight', None)
  view.require('clip_gradient_single_norm_to_value', 0.0)
  view.require('grad_norm_tracker', None)
  view.require('bprop_variable_filter', None)
  view.require('bprop_variable_exclusion', None)
  view.require('scale_gradients', True)
  view.ignore(
    "it concerns TensorFlow's graphs only",
    'grad_aggregation_method',
    'gate_gradients',
    'colocate_gradients_with_ops',
    'learner_use_variable_scope',
  )
  optimizer = registry.translate(_part(view, 'optimizer'))
  schedule = registry.translate(_part(view, 'lr_schedule'))
  l2 = view.get('l2_regularizer_weight')
  fields = dict(
    learning_rate=view.get('learning_rate'),
    clip_gradient_norm_to_value=view.get('clip_gradient_norm_to_value'),
    l2_regularizer_weight=l2 if l2 else None,
  )
  to_zero = view.get('grad_norm_to_clip_to_zero')
  if optimizer is None or schedule is None:
    return None
  return learners.Learner.config(
    optimizer=optimizer.set(lr_schedule=schedule, **fields),
    loss_name='loss',
    regularize_before_clipping=True,
    grad_norm_to_clip_to_zero=to_zero,
    nonfinite_gradients='zero',
  )


def _part(view: ParamsView, name: str) -> ParamsView:
  return ParamsView(view.get(name), f'{view.path}.{name}', view.report)


def _no_weights(view: ParamsView):
  """Reads what optimizers and schedules have only because they are layers."""
  view.get('params_init')
  view.get('dtype')
  view.get('fprop_dtype')


def _optimizer_fields(view: ParamsView):
  _no_weights(view)
  view.ignore(
    "it concerns TensorFlow's graphs only",
    'add_summary_in_apply',
    'clear_variable_scope',
  )
  view.require('use_bf16_gradients_ar', False)


@translates('lingvo.core.optimizer.Adam')
def adam(view: ParamsView) -> Config:
  """`Adam`, with TensorFlow 1's place for epsilon."""
  _optimizer_fields(view)
  return optimizers.Adam.config(
    beta1=view.get('beta1'),
    beta2=view.get('beta2'),
    epsilon=view.get('epsilon'),
    epsilon_hat=True,
    clip_threshold=0.0,
  )


@translates('lingvo.core.optimizer.SGD')
def sgd(view: ParamsView) -> Config:
  """`SGD`."""
  _optimizer_fields(view)
  return optimizers.Sgd.config()


@translates('lingvo.core.schedule.Constant')
def constant_schedule(view: ParamsView) -> Config:
  """`Constant`."""
  _no_weights(view)
  return schedules.Constant.config(value=view.get('value'))


@translates('lingvo.core.schedule.TransformerSchedule')
def transformer_schedule(view: ParamsView) -> Config:
  """`TransformerSchedule`."""
  _no_weights(view)
  view.require('cyclical_step', None)
  return schedules.Transformer.config(
    warmup_steps=view.get('warmup_steps'),
    model_dim=view.get('model_dim'),
    worker_replicas=view.get('worker_replicas'),
    decay_end=view.get('decay_end'),
    decay_factor=view.get('decay_factor'),
    start_step=view.get('start_step'),
  )
