"""Masked language models."""

import jax.numpy as jnp

from lm_tasks.model_params import networks, settings
from pax_compat import base_experiment, layers, tasks_lib
from pax_compat.config import Config


class _TransformerBert(base_experiment.BaseExperiment):
  """What both kinds of BERT have in common.

  Class attributes, beyond those that are fields of layers:
    USE_REPEATED_LAYER: whether one layer is compiled and repeated;
      CHECKPOINT_POLICY applies to it.
    DECAY_END: the step where the learning rate is a tenth of its peak.
    ENABLE_BFLOAT16: whether to compute in bfloat16.
  """

  VOCAB_SIZE = 32000
  DROPOUT_PROB = 0.0
  LEARNING_RATE = 1e-3
  WEIGHT_DECAY = 1e-3
  USE_REPEATED_LAYER = False
  CHECKPOINT_POLICY = layers.AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM
  ACTIVATION_CLS = layers.ReLU
  USE_GATED_ACTIVATION = False

  def _task(self, *, combine_qkv: bool, **fields) -> Config:
    """Returns a task without an optimizer.

    Args:
      combine_qkv: whether queries, keys and values are one product.
      **fields: fields of the model.
    """
    model = layers.BertModel.config(name='bert_lm', **fields)
    networks.set_vocabulary(
      model.lm_tpl,
      model_dims=self.MODEL_DIMS,
      vocab_size=self.VOCAB_SIZE,
      soft_cap_logits=30.0,
    )
    network = self._stack(combine_qkv)
    if self.USE_REPEATED_LAYER:
      network = networks.repeated(
        network, self.NUM_LAYERS, self.CHECKPOINT_POLICY
      )
    settings.maybe_setup_moe_params(network)
    model.lm_tpl.set(
      model_type=layers.LanguageModelType.BIDIRECTIONAL,
      packed_input=True,
      stacked_transformer_tpl=network,
    )
    if self.ENABLE_BFLOAT16:
      model.fprop_dtype = jnp.bfloat16
    task = tasks_lib.SingleTask.config(name='bert_task', model=model)
    task.train.save_interval_steps = self.CHECKPOINT_EVERY_N_STEPS
    return task

  def _stack(self, combine_qkv: bool) -> Config:
    stack = layers.StackedTransformer.config(
      model_dims=self.MODEL_DIMS,
      hidden_dims=self.HIDDEN_DIMS,
      num_layers=self.NUM_LAYERS,
      num_heads=self.NUM_HEADS,
      dropout_prob=self.DROPOUT_PROB,
    )
    layer = stack.transformer_layer_params_tpl
    layer.tr_atten_tpl.set(
      atten_logit_cap=50.0, use_bias=False, combine_qkv=combine_qkv
    )
    layer.tr_fflayer_tpl.set(
      activation_tpl=self.ACTIVATION_CLS.config(),
      use_gated_activation=self.USE_GATED_ACTIVATION,
    )
    return stack


class TransformerBertPmapAdam(_TransformerBert):
  """A masked language model, trained with Adam; each device has a copy.

  Class attributes, beyond those of `_TransformerBert`:
    FORCE_MASK_GENERATION: see `BertModel.force_mask_generation`.
  """

  NUM_LAYERS = 4
  NUM_HEADS = 8
  MODEL_DIMS = 128
  HIDDEN_DIMS = MODEL_DIMS * 4
  CHECKPOINT_EVERY_N_STEPS = 5000
  DECAY_END = 300_000
  FORCE_MASK_GENERATION = False
  ENABLE_BFLOAT16 = True

  def task(self) -> Config:
    """Returns the model and its training settings."""
    task = self._task(
      combine_qkv=False, force_mask_generation=self.FORCE_MASK_GENERATION
    )
    settings.set_default_adam(
      task, self.LEARNING_RATE, self.WEIGHT_DECAY, decay_end=self.DECAY_END
    )
    settings.set_pax_defaults(task)
    return task


class TransformerBertSpmdAdafactor(_TransformerBert):
  """A sharded masked language model, trained with Adafactor.

  Class attributes, beyond those of `_TransformerBert`:
    MASK_TOKEN_ID: the token that replaces masked ones.
    MESH_SHAPE: devices along the axes replica, data and mdl.
    TRAINING_OPTIMIZED_SHARDING: whether activations between layers are sharded
      over the model axis, too.
  """

  NUM_LAYERS = 32
  NUM_HEADS = 16
  MODEL_DIMS = 1024
  HIDDEN_DIMS = MODEL_DIMS * 4
  ENABLE_BFLOAT16 = False
  MASK_TOKEN_ID = 0
  DECAY_END = 100_000
  MESH_SHAPE = None
  TRAINING_OPTIMIZED_SHARDING = True
  CHECKPOINT_EVERY_N_STEPS = 500
  CHECKPOINT_SAVE_MAX_TO_KEEP = 10

  def task(self) -> Config:
    """Returns the model and its training settings."""
    task = self._task(combine_qkv=True, mask_token_id=self.MASK_TOKEN_ID)
    task.train.save_max_to_keep = self.CHECKPOINT_SAVE_MAX_TO_KEEP
    settings.set_default_adafactor(
      task, self.LEARNING_RATE, self.WEIGHT_DECAY, decay_end=self.DECAY_END
    )
    settings.set_sharding_annotations_v1(
      task, self.TRAINING_OPTIMIZED_SHARDING, self.MESH_SHAPE
    )
    settings.set_pax_defaults(task)
    return task
