"""Language models that are trained with Adam, as in Pax's C4 experiments."""

import math

import jax
import jax.numpy as jnp
from absl import logging

from pax_compat import errors, layers, optimizers, schedules
from pax_compat.config import Config

_MAX_GLOBAL_BATCH = 8192


class AdamSettings:
  """Settings of a language model that is trained with Adam.

  Mixed into a base class of `model_params`. A setting of the optimizer that is
  0 or None has the default of Pax's function.

  Class attributes, beyond those that are fields of layers and of Adam:
    EMBEDDING_LOOKUP_STYLE: see `SharedEmbeddingSoftmax.lookup_style`; used by
      GPT-3 models only.
    LEARNING_RATE: None for one that fits the global batch.
    LR_SCHEDULE: 'linear_rampup_exponential_decay', with the fields LR_LRED_*;
      'linear_rampup_cosine_decay', with LR_COS_*, of which None fits the global
      batch; or 'constant'.
  """

  NUM_LAYERS = 32
  NUM_HEADS = 16
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  FPROP_DTYPE = jnp.float32
  PACKED_INPUT = True
  USE_BIAS = False
  EMBEDDING_LOOKUP_STYLE = 'matmul'

  LEARNING_RATE = 1e-3
  ADAM_BETA1 = 0.9
  ADAM_BETA2 = 0.99
  ADAM_CLIP_THRESHOLD = 1.0
  ADAM_EPSILON = 1e-6
  ADAM_EPSILON_ROOT = 0.0

  LR_SCHEDULE = 'linear_rampup_exponential_decay'
  LR_LRED_WARMUP = 4000
  LR_LRED_DECAY_START = 4001
  LR_LRED_DECAY_END = 300_000
  LR_LRED_MIN_RATIO = 0.1
  LR_LRED_MAX = 1.0

  LR_COS_MIN_RATIO = 0.1
  LR_COS_MAX = 1.0
  LR_COS_WARMUP = 4000
  LR_COS_DECAY_START = 4001
  LR_COS_DECAY_END = 300_000

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = super().task()
    layer_template(task).tr_atten_tpl.use_bias = self.USE_BIAS
    return set_adam_and_learning_rate_schedule(self, task)


def set_adam_and_learning_rate_schedule(
  cls: AdamSettings, task_p: Config
) -> Config:
  """Sets Adam and its schedule; returns `task_p`, modified.

  Args:
    cls: the experiment, or its class, with the attributes of `AdamSettings`.
    task_p: config of its task.

  Raises:
    UserError: an attribute is missing or invalid.
  """
  optimizer = optimizers.Adam.config(
    beta1=cls.ADAM_BETA1 or 0.9,
    beta2=cls.ADAM_BETA2 or 0.999,
    weight_decay=cls.WEIGHT_DECAY or 0.0,
    epsilon=cls.ADAM_EPSILON or 1e-6,
    epsilon_root=cls.ADAM_EPSILON_ROOT or 0.0,
    clip_gradient_norm_to_value=cls.CLIP_GRADIENT_NORM_TO_VALUE or 5.0,
    clip_threshold=cls.ADAM_CLIP_THRESHOLD or 1.0,
    learning_rate=cls.LEARNING_RATE,
    lr_schedule=_schedule(cls),
  )
  if cls.LEARNING_RATE is None:
    batch = _global_batch_size(cls, 'LEARNING_RATE')
    optimizer.learning_rate = 2e-5 if batch <= 3584 else 3e-5
  task_p.train.learner.set(loss_name='total_loss', optimizer=optimizer)
  return task_p


def _schedule(cls: AdamSettings) -> Config:
  """Returns the schedule that LR_SCHEDULE names."""
  errors.check_known(
    f'{_name(cls)}.LR_SCHEDULE',
    cls.LR_SCHEDULE,
    (
      'linear_rampup_exponential_decay',
      'linear_rampup_cosine_decay',
      'constant',
    ),
  )
  if cls.LR_SCHEDULE == 'linear_rampup_exponential_decay':
    return schedules.LinearRampupExponentialDecay.config(
      warmup_steps=cls.LR_LRED_WARMUP,
      decay_start=cls.LR_LRED_DECAY_START,
      decay_end=cls.LR_LRED_DECAY_END,
      min_ratio=cls.LR_LRED_MIN_RATIO,
      max=cls.LR_LRED_MAX,
    )
  if cls.LR_SCHEDULE == 'linear_rampup_cosine_decay':
    warmup = cls.LR_COS_WARMUP
    if warmup is None:
      warmup = _steps(cls, 'LR_COS_WARMUP', 265)
    start, end = cls.LR_COS_DECAY_START, cls.LR_COS_DECAY_END
    return schedules.LinearRampupCosineDecay.config(
      warmup_steps=warmup,
      decay_start=warmup + 1 if start is None else start,
      decay_end=_steps(cls, 'LR_COS_DECAY_END', 108_600)
      if end is None
      else end,
      min_ratio=cls.LR_COS_MIN_RATIO,
      max=cls.LR_COS_MAX,
    )
  return schedules.Constant.config()


def _steps(cls: AdamSettings, attribute: str, steps: int) -> int:
  """Returns the steps that read as many examples as `steps` of 1,536."""
  batch = _global_batch_size(cls, attribute)
  return math.ceil(steps * 1536.0 / batch - 1e-6)


def _global_batch_size(cls: AdamSettings, attribute: str) -> int:
  """Returns the examples of a batch, for an attribute that is None."""
  batch = int(cls.PERCORE_BATCH_SIZE * jax.device_count() + 1e-6)
  if not 0 < batch <= _MAX_GLOBAL_BATCH:
    raise errors.UserError(
      f'{_name(cls)}.{attribute} is None, so it depends on the global batch:'
      f' {batch} examples, PERCORE_BATCH_SIZE {cls.PERCORE_BATCH_SIZE} on'
      f' {jax.device_count()} devices; expected 1 to {_MAX_GLOBAL_BATCH}'
    )
  logging.info('%s.%s fits %d examples', _name(cls), attribute, batch)
  return batch


def _name(cls: AdamSettings) -> str:
  return (cls if isinstance(cls, type) else type(cls)).__name__


def layer_template(task: Config) -> Config:
  """Returns the template of a language model's layers."""
  stack = task.model.lm_tpl.stacked_transformer_tpl
  if issubclass(stack.cls, layers.PipelinedTransformer):
    stack = stack.pipeline_stage
  if issubclass(stack.cls, layers.StackedTransformerRepeated):
    stack = stack.block
  return stack.transformer_layer_params_tpl
