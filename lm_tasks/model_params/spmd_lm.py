"""Transformer language models that are sharded over a mesh."""

import jax.numpy as jnp
from absl import logging

from lm_tasks.model_params import networks, settings
from pax_compat import base_experiment, errors, layers, tasks_lib
from pax_compat.config import Config


class TransformerLmSpmdAdafactor(base_experiment.BaseExperiment):
  """A sharded Transformer language model, trained with Adafactor.

  Without `ICI_MESH_SHAPE` training is data parallel; with it weights are
  sharded over the mesh axes replica, data and mdl.

  Class attributes, beyond those that are fields of layers:
    DIMS_PER_HEAD, NUM_HEADS: either may be None; MODEL_DIMS is their product.
    FPROP_DTYPE: dtype of the computation. Weights are float32.
    SEPARATE_EMBEDDING: whether embedding and softmax have separate weights.
    TRAINABLE_POSITION_EMB: whether positions are learned, at most
      TRAINABLE_PE_MAX_SEQ_LEN of them; else they are sinusoids.
    RELATIVE_BIAS, USE_ROTARY_POSITION_EMB: additional encodings of positions in
      attention, at most one of them.
    ENABLE_DCONV: whether queries, keys and values pass a causal convolution.
    USE_REPEATED_LAYER: whether one layer is compiled and repeated;
      CHECKPOINT_POLICY applies to it.
    USE_FP8: whether projections and feed-forward layers multiply in 8 bits.
    USE_EXPERT_PARALLEL: whether the mesh has a fourth axis, for experts.
    USE_CUDNN_FLASH_ATTENTION: has no effect: on NVIDIA GPUs attention uses
      cuDNN wherever it can.
    DECAY_END: the step where the learning rate is a tenth of its peak.
    TRAINING_OPTIMIZED_SHARDING: whether activations between layers are sharded
      over the model axis, too.
    MODEL_CLASS: the class of the model.
  """

  NUM_LAYERS = 10
  VOCAB_SIZE = 32000
  DIMS_PER_HEAD = 128
  NUM_HEADS = None
  MODEL_DIMS = 2048
  HIDDEN_DIMS = MODEL_DIMS * 4
  FPROP_DTYPE = jnp.bfloat16
  PACKED_INPUT = True

  USE_REPEATED_LAYER = False
  SEPARATE_EMBEDDING = False
  TRAINABLE_POSITION_EMB = False
  TRAINABLE_PE_MAX_SEQ_LEN = 16 * 1024
  RELATIVE_BIAS = False
  USE_ROTARY_POSITION_EMB = False
  NORM_POLICY = 'pre'
  ENABLE_DCONV = False
  COMBINE_QKV = True
  ACTIVATION_CLS = layers.ReLU
  USE_GATED_ACTIVATION = False
  DECAY_END = 100_000
  USE_FP8 = False
  USE_EXPERT_PARALLEL = False
  USE_CUDNN_FLASH_ATTENTION = False

  DROPOUT_PROB = 0.0
  LEARNING_RATE = 2.5e-4
  CLIP_GRADIENT_NORM_TO_VALUE = 5.0
  WEIGHT_DECAY = 1e-3
  SOFTMAX_CAP_LOGITS = 30.0
  ATTEN_LOGIT_CAP = 50.0
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_NOTHING

  CHECKPOINT_EVERY_N_STEPS = 5000
  SUMMARY_INTERVAL_STEPS = 100
  CHECKPOINT_MAX_TO_KEEP = 10
  EVAL_INTERVAL_STEPS = 100

  PROFILER_NUM_STEPS = 2
  PROFILER_MIN_DURATION_SEC = 1
  PROFILER_CAPTURE_STEP = None

  ICI_MESH_SHAPE = None
  DCN_MESH_SHAPE = [1, 1, 1]
  TRAINING_OPTIMIZED_SHARDING = True

  MODEL_CLASS = layers.LanguageModel

  def task(self) -> Config:
    """Returns the language model and its training settings."""
    task = tasks_lib.SingleTask.config(name='xformer_task', model=self._model())
    self._set_training(task)
    if self.ICI_MESH_SHAPE is not None:
      self._shard(task)
    settings.maybe_setup_moe_params(task.model.lm_tpl.stacked_transformer_tpl)
    settings.set_pax_defaults(task)
    return task

  def _shard(self, task: Config):
    shard = settings.set_sharding_annotations_v1
    if self.USE_EXPERT_PARALLEL:
      shard = settings.set_sharding_annotations_with_expert_parallelism
    shard(
      task,
      self.TRAINING_OPTIMIZED_SHARDING,
      self.ICI_MESH_SHAPE,
      self.DCN_MESH_SHAPE,
    )

  def _set_training(self, task: Config):
    """Sets the optimizer, and the intervals of what happens in training."""
    settings.set_default_adafactor(
      task,
      self.LEARNING_RATE,
      self.WEIGHT_DECAY,
      decay_end=self.DECAY_END,
      clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
    )
    task.train.set(
      save_interval_steps=self.CHECKPOINT_EVERY_N_STEPS,
      summary_interval_steps=self.SUMMARY_INTERVAL_STEPS,
      save_max_to_keep=self.CHECKPOINT_MAX_TO_KEEP,
      eval_interval_steps=self.EVAL_INTERVAL_STEPS,
      profiler_num_steps=self.PROFILER_NUM_STEPS,
      profiler_min_duration_sec=self.PROFILER_MIN_DURATION_SEC,
      profiler_capture_step=self.PROFILER_CAPTURE_STEP,
    )

  def _model(self) -> Config:
    model = self.MODEL_CLASS.config(
      name='xformer_lm', fprop_dtype=self.FPROP_DTYPE
    )
    self._check_features()
    networks.set_vocabulary(
      model.lm_tpl,
      model_dims=self.MODEL_DIMS,
      vocab_size=self.VOCAB_SIZE,
      soft_cap_logits=self.SOFTMAX_CAP_LOGITS,
      separate_embedding=self.SEPARATE_EMBEDDING,
    )
    if self.TRAINABLE_POSITION_EMB:
      model.lm_tpl.position_emb_tpl = (
        layers.TrainablePositionalEmbedding.config(
          max_seq_length=self.TRAINABLE_PE_MAX_SEQ_LEN
        )
      )
    model.lm_tpl.set(
      packed_input=self.PACKED_INPUT, stacked_transformer_tpl=self._network()
    )
    return model

  def _network(self) -> Config:
    """Returns the layers, all of them."""
    stack = self._stack()
    if not self.USE_REPEATED_LAYER:
      return stack.set(num_layers=self.NUM_LAYERS)
    return networks.repeated(stack, self.NUM_LAYERS, self.CHECKPOINT_POLICY)

  def _stack(self) -> Config:
    """Returns a stack of layers, whose number is not set."""
    heads = settings.num_heads(
      type(self),
      model_dims=self.MODEL_DIMS,
      dims_per_head=self.DIMS_PER_HEAD,
      given=self.NUM_HEADS,
    )
    stack = layers.StackedTransformer.config(
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      num_heads=heads,
      dim_per_head=self.DIMS_PER_HEAD,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer = stack.transformer_layer_params_tpl.set(norm_policy=self.NORM_POLICY)
    layer.tr_atten_tpl.set(
      use_bias=False,
      combine_qkv=self.COMBINE_QKV,
      atten_logit_cap=self.ATTEN_LOGIT_CAP,
      dconv_qkv=self.ENABLE_DCONV,
      use_rotary_position_emb=self.USE_ROTARY_POSITION_EMB,
    )
    if self.USE_FP8:
      for product in (
        layer.tr_atten_tpl.proj_tpl,
        layer.tr_atten_tpl.combined_qkv_proj_tpl,
        layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl,
      ):
        product.einsum_tpl = layers.Fp8EinsumOp.config()
    if self.RELATIVE_BIAS:
      layer.tr_atten_tpl.relative_bias_tpl = layers.RelativeBias.config()
    layer.tr_fflayer_tpl.set(
      activation_tpl=self.ACTIVATION_CLS.config(),
      use_gated_activation=self.USE_GATED_ACTIVATION,
    )
    return stack

  def _check_features(self):
    """Raises a UserError for attributes that contradict or are refused."""
    if self.RELATIVE_BIAS and self.USE_ROTARY_POSITION_EMB:
      self._refuse('RELATIVE_BIAS', 'USE_ROTARY_POSITION_EMB is True, too')
    if self.USE_CUDNN_FLASH_ATTENTION:
      logging.info(
        '%s.USE_CUDNN_FLASH_ATTENTION: on NVIDIA GPUs attention always uses'
        ' cuDNN where it can, which a logit cap prevents',
        type(self).__name__,
      )

  def _refuse(self, attribute: str, why: str):
    value = getattr(self, attribute)
    raise errors.UserError(
      f'{type(self).__name__}.{attribute} is {value!r}, but {why}'
    )
