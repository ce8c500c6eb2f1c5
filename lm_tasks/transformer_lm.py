"""Decoder-only Transformer language models as experiments.

Class attributes of a derived class configure the size, the training and the
mesh; a mixin adds the data.
"""

import math

import jax
import jax.numpy as jnp

from lm_tasks import synthetic_lm
from pax_compat import (
  base_experiment,
  errors,
  layers,
  optimizers,
  schedules,
  tasks_lib,
)
from pax_compat.base_layer import WeightInit
from pax_compat.config import Config


class SyntheticData(base_experiment.BaseExperiment):
  """Synthetic rows, to measure a model's speed and memory.

  `PERCORE_BATCH_SIZE` rows of `MAX_SEQ_LEN` tokens per device.
  """

  PERCORE_BATCH_SIZE = 16
  MAX_SEQ_LEN = 1024
  VOCAB_SIZE = 32000
  EVAL_BATCHES = 10

  def datasets(self) -> list[Config]:
    """Returns an endless training set and a finite eval set."""
    common = dict(
      batch_size=self.PERCORE_BATCH_SIZE * jax.local_device_count(),
      seq_len=self.MAX_SEQ_LEN,
      vocab_size=self.VOCAB_SIZE,
    )
    data = synthetic_lm.SyntheticLmInput
    return [
      data.config(name='train', is_training=True, **common),
      data.config(
        name='dev',
        input_random_seed=1,
        num_batches=self.EVAL_BATCHES,
        reset_for_eval=True,
        **common,
      ),
    ]


class TransformerLm(base_experiment.BaseExperiment):
  """A Transformer language model, trained with Adam or Adafactor.

  Embedding and softmax share weights. Without `ICI_MESH_SHAPE` training is data
  parallel; with it weights are sharded over the axes replica, data and mdl.
  """

  NUM_LAYERS = 10
  VOCAB_SIZE = 32000
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  # One of the two determines the other.
  DIMS_PER_HEAD = 128
  NUM_HEADS = None
  FPROP_DTYPE = jnp.bfloat16
  NORM_POLICY = 'pre'
  COMBINE_QKV = True
  ACTIVATION_CLS = layers.ReLU
  USE_GATED_ACTIVATION = False
  USE_ROTARY_POSITION_EMB = False
  ATTEN_LOGIT_CAP = 50.0
  SOFTMAX_CAP_LOGITS = 30.0
  DROPOUT_PROB = 0.0

  USE_REPEATED_LAYER = False
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_NOTHING

  LEARNING_RATE = 2.5e-4
  WEIGHT_DECAY = 1e-3
  CLIP_GRADIENT_NORM_TO_VALUE = 5.0
  DECAY_END = 100_000
  NUM_TRAIN_STEPS = 10_000_000
  CHECKPOINT_EVERY_N_STEPS = 5000
  SUMMARY_INTERVAL_STEPS = 100
  EVAL_INTERVAL_STEPS = 100

  ICI_MESH_SHAPE = None
  DCN_MESH_SHAPE = None

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = tasks_lib.SingleTask.config(name='xformer_task', model=self._model())
    task.train.set(
      num_train_steps=self.NUM_TRAIN_STEPS,
      save_interval_steps=self.CHECKPOINT_EVERY_N_STEPS,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      eval_interval_steps=self.EVAL_INTERVAL_STEPS,
    )
    task.train.learner.set(loss_name='total_loss', optimizer=self._optimizer())
    task.train.learner.optimizer.set(
      learning_rate=self.LEARNING_RATE,
      clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
      lr_schedule=schedules.LinearRampupExponentialDecay.config(
        warmup_steps=4000,
        decay_start=4001,
        decay_end=self.DECAY_END,
        min_ratio=0.1,
        max=1.0,
      ),
    )
    return task

  def _optimizer(self) -> Config:
    return optimizers.ShardedAdafactor.config(
      decay_method='adam',
      beta1=0.9,
      decay_adam=0.99,
      weight_decay=self.WEIGHT_DECAY,
    )

  def _model(self) -> Config:
    model = layers.LanguageModel.config(
      name='xformer_lm', fprop_dtype=self.FPROP_DTYPE
    )
    model.lm_tpl.set(
      packed_input=True,
      model_dims=self.MODEL_DIMS,
      vocab_size=self.VOCAB_SIZE,
      stacked_transformer_tpl=self._stack(),
    )
    model.lm_tpl.softmax_tpl.set(
      params_init=WeightInit.Gaussian(1.0 / math.sqrt(self.MODEL_DIMS)),
      scale_sqrt_depth=True,
      soft_cap_logits=self.SOFTMAX_CAP_LOGITS,
    )
    if self.ICI_MESH_SHAPE is None:
      return model
    names = dict(replica_axis='replica', data_axis='data', mdl_axis='mdl')
    mesh = dict(
      ici_mesh_shape=self.ICI_MESH_SHAPE,
      dcn_mesh_shape=self.DCN_MESH_SHAPE,
      mesh_axis_names=list(names.values()),
    )
    lm = layers.TransformerLm.set_sharding_params_v1(
      model.lm_tpl, training_optimized=True, **names, **mesh
    )
    return model.set(lm_tpl=lm, **mesh)

  def _stack(self) -> Config:
    stack = layers.StackedTransformer.config(
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      num_heads=self._num_heads(),
      dim_per_head=self.DIMS_PER_HEAD,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer = stack.transformer_layer_params_tpl.set(norm_policy=self.NORM_POLICY)
    layer.tr_atten_tpl.set(
      use_bias=False,
      combine_qkv=self.COMBINE_QKV,
      atten_logit_cap=self.ATTEN_LOGIT_CAP,
      use_rotary_position_emb=self.USE_ROTARY_POSITION_EMB,
    )
    layer.tr_fflayer_tpl.set(
      activation_tpl=self.ACTIVATION_CLS.config(),
      use_gated_activation=self.USE_GATED_ACTIVATION,
    )
    if not self.USE_REPEATED_LAYER:
      return stack.set(num_layers=self.NUM_LAYERS)
    return layers.StackedTransformerRepeated.config(
      block=stack.set(num_layers=1),
      x_times=self.NUM_LAYERS,
      checkpoint_policy=self.CHECKPOINT_POLICY,
    )

  def _num_heads(self) -> int:
    if self.NUM_HEADS is not None:
      return self.NUM_HEADS
    heads, rest = divmod(self.MODEL_DIMS, self.DIMS_PER_HEAD)
    if rest:
      raise errors.UserError(
        f'{type(self).__name__}.MODEL_DIMS is {self.MODEL_DIMS}; expected a'
        f' multiple of DIMS_PER_HEAD, {self.DIMS_PER_HEAD}'
      )
    return heads


class TransformerLmAdam(TransformerLm):
  """The same, trained with Adam, in float32 and without a mesh."""

  LEARNING_RATE = 1e-3
  DECAY_END = 300_000
  FPROP_DTYPE = None
  COMBINE_QKV = False

  def _optimizer(self) -> Config:
    return optimizers.Adam.config(
      beta1=0.9, beta2=0.99, weight_decay=self.WEIGHT_DECAY
    )
